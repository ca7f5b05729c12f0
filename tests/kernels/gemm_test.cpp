#include "kernels/gemm.h"

#include <algorithm>
#include <string_view>

#include "gradient_check.h"

using namespace qkgpt;
using namespace qkgpt::test;

namespace {

using Floats = std::vector<float>;

Floats random(Index n, std::uint64_t seed) {
  const Array<double> x = normals(n, seed);
  return Floats(x.begin(), x.end());
}

float& at(Floats& x, Index i) { return x[static_cast<std::size_t>(i)]; }
float at(const Floats& x, Index i) { return x[static_cast<std::size_t>(i)]; }
double wide(const Floats& x, Index i) { return static_cast<double>(at(x, i)); }

// One product with every stride spelled out: A (M, K), B (K, N), what the sums start from, all in ordinary order.
struct Product {
  Index M, N, K;
  Floats a, b, start;  // start: empty, N numbers (a row for all) or M N

  Product(Index m, Index n, Index k, Index start_rows = 0)
      : M(m), N(n), K(k), a(random(m * k, 1)), b(random(k * n, 2)), start(random(start_rows * n, 3)) {}

  Index start_stride() const { return static_cast<Index>(start.size()) == N ? 0 : N; }
  Start begin() const { return {start.empty() ? nullptr : start.data(), start_stride()}; }
  Panels packed(Floats& buffer) const {
    buffer.assign(static_cast<std::size_t>(panel_floats(K, N)), NAN);
    return pack(b.data(), N, 1, K, N, buffer.data());
  }
  Floats by_gemm() const {
    Floats buffer, c(static_cast<std::size_t>(M * N), NAN);
    gemm(M, {a.data(), K, 1}, packed(buffer), begin(), c.data(), N);
    return c;
  }

  // Largest error over the one that a chain of K roundings explains.
  double error(const Floats& c) const {
    double worst = 0.0;
    for (Index i = 0; i < M; ++i)
      for (Index n = 0; n < N; ++n) {
        double sum = start.empty() ? 0.0 : wide(start, i * start_stride() + n), size = std::abs(sum);
        for (Index k = 0; k < K; ++k) {
          const double term = wide(a, i * K + k) * wide(b, k * N + n);
          sum += term, size += std::abs(term);
        }
        const double allowed = (1.0 + std::sqrt(static_cast<double>(K))) * 0x1p-24 * size;
        const double e = std::abs(wide(c, i * N + n) - sum);
        worst = std::max(worst, std::isnan(e) ? INFINITY : allowed > 0.0 ? e / allowed : e);
      }
    return worst;
  }

  // The chain that gemm.h promises: fused multiply-adds over k = 0, 1, 2, ... from the start.
  Floats by_chain() const {
    Floats c(static_cast<std::size_t>(M * N));
    for (Index i = 0; i < M; ++i)
      for (Index n = 0; n < N; ++n) {
        float sum = start.empty() ? 0.0f : at(start, i * start_stride() + n);
        for (Index k = 0; k < K; ++k) sum = std::fma(at(a, i * K + k), at(b, k * N + n), sum);
        at(c, i * N + n) = sum;
      }
    return c;
  }
};

constexpr bool has_fma = std::string_view(simd_name) != "baseline";

void check_product(const Product& p) {
  INFO("M " << p.M << " N " << p.N << " K " << p.K << " start " << p.start.size());
  const Floats c = p.by_gemm();
  CHECK(p.error(c) <= 1.0);
  if (has_fma) CHECK((c == p.by_chain()));
}

Floats weight_gradient(Index tokens, Index n, Index k, const Floats& dy, const Floats& x, bool add, Floats dw) {
  Floats scratch(static_cast<std::size_t>(weight_grad_scratch()));
  weight_grad(tokens, n, k, dy.data(), x.data(), add, dw.data(), scratch.data());
  return dw;
}

}  // namespace

TEST_CASE("gemm is the product for few rows and columns", "[unit]") {
  for (Index rows = 1; rows <= 13; ++rows)
    for (Index columns = 1; columns <= 40; ++columns) check_product({rows, columns, 5, rows % 3 == 0 ? 1 : 0});
}

TEST_CASE("gemm is the product for odd sizes and depths beyond a block", "[unit]") {
  const Index sizes[][3] = {{1, 1, 1},     {14, 65, 15},  {193, 33, 7},    {200, 31, 257},
                            {25, 97, 512}, {13, 48, 700}, {385, 100, 300}, {12, 64, 256}};
  for (const auto& [m, n, k] : sizes)
    for (const Index start_rows : {Index{0}, Index{1}, m}) check_product({m, n, k, start_rows});
}

TEST_CASE("gemm of depth zero is the start", "[unit]") {
  for (const Index start_rows : {0, 1, 5}) {
    const Product p(5, 37, 0, start_rows);
    CHECK(p.by_gemm() == p.by_chain());
  }
}

TEST_CASE("gemm adds to C itself and leaves what lies beside it", "[unit]") {
  const Product p(19, 37, 23, 19);
  Floats buffer, c(19 * 50, 7.0f);
  for (Index i = 0; i < 19; ++i)
    for (Index n = 0; n < 37; ++n) at(c, i * 50 + n) = at(p.start, i * 37 + n);
  gemm(19, {p.a.data(), 23, 1}, p.packed(buffer), {c.data(), 50}, c.data(), 50);
  Floats inside, beside;
  for (Index i = 0; i < 19; ++i)
    for (Index n = 0; n < 50; ++n) (n < 37 ? inside : beside).push_back(at(c, i * 50 + n));
  CHECK(p.error(inside) <= 1.0);
  CHECK(beside == Floats(19 * 13, 7.0f));
}

TEST_CASE("gemm reads A and packs B by their strides", "[unit]") {
  const Product p(14, 37, 23);
  Floats at_a(p.a.size()), bt(p.b.size());  // both transposed
  for (Index i = 0; i < p.M; ++i)
    for (Index k = 0; k < p.K; ++k) at(at_a, k * p.M + i) = at(p.a, i * p.K + k);
  for (Index k = 0; k < p.K; ++k)
    for (Index n = 0; n < p.N; ++n) at(bt, n * p.K + k) = at(p.b, k * p.N + n);
  Floats buffer(static_cast<std::size_t>(panel_floats(p.K, p.N))), c(static_cast<std::size_t>(p.M * p.N));
  const Panels b = pack(bt.data(), 1, p.K, p.K, p.N, buffer.data());
  gemm(p.M, {at_a.data(), 1, p.M}, b, {}, c.data(), p.N);
  CHECK((c == p.by_gemm()));
}

TEST_CASE("gemm_serial computes the range of k and columns that it is told", "[unit]") {
  const Product p(14, 70, 300);
  Floats buffer, c(14 * 70, 7.0f);
  gemm_serial(14, 33, 20, 290, {p.a.data(), 300, 1}, p.packed(buffer), {}, c.data(), 70);
  Product part(14, 33, 270);
  for (Index i = 0; i < 14; ++i)
    for (Index k = 0; k < 270; ++k) at(part.a, i * 270 + k) = at(p.a, i * 300 + 20 + k);
  for (Index k = 0; k < 270; ++k)
    for (Index n = 0; n < 33; ++n) at(part.b, k * 33 + n) = at(p.b, (20 + k) * 70 + n);
  Floats inside;
  for (Index i = 0; i < 14; ++i)
    for (Index n = 0; n < 70; ++n) {
      if (n < 33)
        inside.push_back(at(c, i * 70 + n));
      else
        REQUIRE(at(c, i * 70 + n) == 7.0f);
    }
  CHECK(inside == part.by_gemm());
}

TEST_CASE("pack fills panels with the columns and zeros behind them", "[unit]") {
  for (const Index columns : {1, 15, 16, 17, 31, 32, 33, 65}) {
    const Product p(1, columns, 3);
    Floats buffer;
    const Panels b = p.packed(buffer);
    CHECK(b.depth == 3);
    CHECK(b.columns == columns);
    Floats want(buffer.size());
    for (Index first = 0; first < columns; first += panel_width) {
      const Index width = columns - first > lanes ? panel_width : lanes;
      for (Index k = 0; k < 3; ++k)
        for (Index j = 0; j < std::min(width, columns - first); ++j)
          at(want, first * 3 + k * width + j) = at(p.b, k * columns + first + j);
    }
    CHECK(buffer == want);
  }
}

TEST_CASE("panels filled row by row or column by column are those of pack", "[unit]") {
  for (const Index columns : {1, 7, 8, 9, 15, 16, 17, 24, 31, 32, 33, 40, 65}) {
    const Product p(1, columns, 5);
    Floats packed, transposed(p.b.size());
    p.packed(packed);
    for (Index k = 0; k < p.K; ++k)
      for (Index n = 0; n < columns; ++n) at(transposed, n * p.K + k) = at(p.b, k * columns + n);
    Floats rows(packed.size()), cols(packed.size());
    for (Index k = p.K - 1; k >= 0; --k) pack_row(p.b.data() + k * columns, k, p.K, columns, rows.data());
    for (Index n = columns - 1; n >= 0; --n) pack_column(transposed.data() + n * p.K, n, p.K, columns, cols.data());
    CHECK(rows == packed);
    CHECK(cols == packed);
  }
}

TEST_CASE("gemm gives the same bits for any number of threads and row by row", "[unit]") {
  const Product p(150, 97, 400, 1);
  const auto with = [&](int threads) {
    const Threads guard(threads);
    return p.by_gemm();
  };
  const Floats one = with(1);
  for (const int threads : {2, 3, 4, 7}) CHECK((with(threads) == one));
  Floats buffer, rows(one.size());
  const Panels b = p.packed(buffer);
  for (Index i = 0; i < p.M; ++i)
    gemm_serial(1, p.N, 0, p.K, {p.a.data() + i * p.K, p.K, 1}, b, p.begin(), rows.data() + i * p.N, p.N);
  CHECK((rows == one));
}

TEST_CASE("weight_grad is dY transposed times X", "[unit]") {
  const Index sizes[][3] = {{1, 1, 1},   {7, 15, 65}, {13, 12, 32}, {257, 33, 31},   {600, 50, 40}, {64, 1, 33},
                            {3, 130, 7}, {5, 6, 20},  {9, 7, 33},   {400, 390, 500}, {30, 300, 20}};
  for (const auto& [tokens, n, k] : sizes)
    for (const bool add : {false, true}) {
      INFO("tokens " << tokens << " n " << n << " k " << k << " add " << add);
      Product p(n, k, tokens, add ? n : 0);  // A = dY^T, B = X
      Floats dy(p.a.size());
      for (Index t = 0; t < tokens; ++t)
        for (Index o = 0; o < n; ++o) at(dy, t * n + o) = at(p.a, o * tokens + t);
      const Floats dw =
          weight_gradient(tokens, n, k, dy, p.b, add, add ? p.start : Floats(static_cast<std::size_t>(n * k), NAN));
      CHECK(p.error(dw) <= 1.0);
      if (has_fma) CHECK((dw == p.by_chain()));
    }
}

TEST_CASE("weight_grad gives the same bits for any number of threads", "[unit]") {
  const Index tokens = 600, n = 70, k = 100;
  const Floats dy = random(tokens * n, 1), x = random(tokens * k, 2);
  const auto with = [&](int threads) {
    const Threads guard(threads);
    return weight_gradient(tokens, n, k, dy, x, false, Floats(static_cast<std::size_t>(n * k)));
  };
  const Floats one = with(1);
  for (const int threads : {2, 3, 4, 7}) CHECK((with(threads) == one));
}
