// gelu, dropout, embedding.
#include "gradient_check.h"
#include "kernels/mask.h"
#include "ops/ops.h"

using namespace qkgpt;
using namespace qkgpt::test;

namespace {

// The op multiplies gelu(x) (rows, 1) by W^T (1, 1): with W = 1 the product changes nothing.
const auto gelu_op = [](Tape& tape, std::deque<Param>& p) -> Var& {
  return gelu_linear(tape, p[0].var, p[1], nullptr);
};
const auto gelu_formula = [](const auto& x) {
  using Numbers = std::decay_t<decltype(x[0])>;
  return reference::linear(reference::gelu(x[0]), x[1], Numbers(), 1, 1);
};
std::vector<Leaf> gelu_leaves(const Array<double>& x) {
  return {{"x", {x.size(), 1}, x}, {"W", {1, 1}, Array<double>(1, 1.0)}};
}

Array<double> mask_of(const Dropout& noise, Index n) {
  std::vector<float> mask(static_cast<std::size_t>(n));
  dropout_mask(noise.p, noise.key, 0, n, mask.data());
  return Array<double>(mask);
}

auto dropout_op(const Dropout& noise) {
  return [noise](Tape& tape, std::deque<Param>& p) -> Var& { return dropout(tape, p[0].var, noise); };
}

}  // namespace

TEST_CASE("gelu and its gradient agree with the formula", "[gradient]") {
  for (const Index n : {1, 15, 16, 210}) check_op(gelu_leaves(uniforms(n, 1, -6.0, 6.0)), gelu_op, gelu_formula);
  check_op_sampled(
      {{"x", {161, 93}, normals(161 * 93, 1)}, {"W", {70, 93}, normals(70 * 93, 2, 0.1)}}, gelu_op,
      [](const auto& x) {
        using Numbers = std::decay_t<decltype(x[0])>;
        return reference::linear(reference::gelu(x[0]), x[1], Numbers(), 93, 70);
      },
      50);
  // rows, in, out; with a bias or onto a residual
  const Index sizes[][3] = {{1, 3, 2}, {14, 15, 65}, {50, 33, 7}, {97, 16, 48}};
  for (const auto& [rows, in, out] : sizes) {
    std::vector<Leaf> all = {{"x", {rows, in}, normals(rows * in, 1, 2.0)},
                             {"W", {out, in}, normals(out * in, 2, 0.25)},
                             {"b", {out}, normals(out, 3)}};
    check_op(
        all, [](Tape& tape, std::deque<Param>& p) -> Var& { return gelu_linear(tape, p[0].var, p[1], &p[2]); },
        [in = in, out = out](const auto& x) { return reference::linear(reference::gelu(x[0]), x[1], x[2], in, out); });
    all[2] = {"residual", {rows, out}, normals(rows * out, 3)};
    check_op(
        all,
        [](Tape& tape, std::deque<Param>& p) -> Var& { return gelu_linear(tape, p[0].var, p[1], nullptr, &p[2].var); },
        [in = in, out = out](const auto& x) {
          using Numbers = std::decay_t<decltype(x[0])>;
          Numbers y = reference::linear(reference::gelu(x[0]), x[1], Numbers(), in, out);
          for (Index i = 0; i < y.size(); ++i) y[i] += x[2][i];
          return y;
        });
  }
}

TEST_CASE("gelu is the exact form and not the tanh one", "[unit]") {
  const Result got = run(gelu_leaves(Array<double>(std::vector{1.0, -1.0})), Array<double>(2, 1.0), gelu_op);
  CHECK(std::abs(got.y[0] - 0.8413447461) < 1.2e-7);  // tanh form: 0.841192
  CHECK(std::abs(got.y[1] + 0.1586552539) < 1.2e-7);
}

TEST_CASE("dropout and its gradient use the same mask", "[gradient]") {
  const Dropout noise{0.3, Stream(1, "dropout", 5).key()};
  for (const Index n : {1, 15, 210}) {
    const Array<double> mask = mask_of(noise, n);
    check_op({{"x", {n}, normals(n, 1), 1, 0.01}}, dropout_op(noise),
             [&](const auto& x) { return reference::dropout(x[0], mask); });
  }
  const Index n = 3 * 8 * 1024 + 5;
  const Array<double> mask = mask_of(noise, n);
  check_op_sampled(
      {{"x", {n}, normals(n, 1)}}, dropout_op(noise), [&](const auto& x) { return reference::dropout(x[0], mask); },
      50);
}

TEST_CASE("dropout keeps the stated share and the mean", "[unit]") {
  const Index n = 200000;
  for (const double p : {0.1, 0.5, 0.9}) {
    const Result got =
        run({{"x", {n}, Array<double>(n, 1.0)}}, Array<double>(n, 1.0), dropout_op({p, Stream(3, "dropout").key()}));
    Index kept = 0;
    double sum = 0.0;
    for (const double y : got.y) kept += y != 0.0, sum += y;
    const double share = static_cast<double>(kept) / static_cast<double>(n);
    const double sigma = std::sqrt(p * (1.0 - p) / static_cast<double>(n));
    INFO("p " << p);
    CHECK(std::abs(share - (1.0 - p)) < 5.0 * sigma);
    CHECK(std::abs(sum / static_cast<double>(n) - 1.0) < 5.0 * sigma / (1.0 - p));
    CHECK(largest(got.y) == to_float(1.0 / (1.0 - p)));
    CHECK(got.gradients[0] == got.y);
  }
}

TEST_CASE("dropout with p 0 is x itself", "[unit]") {
  Params params;
  Param& x = params.add("x", {3}, false);
  params.allocate(true);
  Arena arena;
  Tape tape(arena, true);
  CHECK(&dropout(tape, x.var, {}) == &x.var);
}

TEST_CASE("dropout masks of other steps and sites are other masks", "[unit]") {
  const Index n = 1000;
  std::vector<Array<double>> masks;
  for (const int step : {0, 1})
    for (const char* site : {"attention", "attn.c_proj"})
      masks.push_back(mask_of({0.5, Stream(1, "dropout", step, std::string_view(site)).key()}, n));
  for (std::size_t a = 0; a < masks.size(); ++a)
    for (std::size_t b = 0; b < a; ++b) {
      Index equal = 0;
      for (Index i = 0; i < n; ++i) equal += masks[a][i] == masks[b][i];
      CHECK(std::abs(equal - n / 2) < 80);  // 5 sigma
    }
}

TEST_CASE("embedding and its gradients agree with the formula", "[gradient]") {
  // B, T, V, C, positions, first: repeated tokens, tokens that never occur, positions before and beyond those used
  const Index sizes[][6] = {{2, 7, 11, 15, 9, 0}, {1, 1, 1, 1, 1, 0},  {3, 5, 40, 33, 5, 0},
                            {4, 9, 3, 17, 9, 0},  {2, 4, 5, 17, 9, 3}, {2, 1, 5, 7, 9, 8}};
  for (const auto& [B, T, V, C, positions, first] : sizes) {
    INFO("B " << B << " T " << T << " V " << V << " C " << C);
    const auto tokens = integers(B * T, 4, V);
    check_op(
        {{"wte", {V, C}, normals(V * C, 1)}, {"wpe", {positions, C}, normals(positions * C, 2)}},
        [&, b = B, t = T, f = first](Tape& tape, std::deque<Param>& p) -> Var& {
          return embedding(tape, tokens.data(), b, t, p[0], p[1], f);
        },
        [&, t = T, c = C, f = first](const auto& x) {
          auto moved = x[1];
          for (Index i = 0; i < t * c; ++i) moved[i] = x[1][f * c + i];
          return reference::embedding(tokens, t, c, x[0], moved);
        });
  }
}

TEST_CASE("element operations give the same bits with 1 2 and 3 threads", "[unit]") {
  const Index n = 70001;
  const std::vector<Leaf> x = {{"x", {n}, normals(n, 1)}};
  check_threads(gelu_leaves(x[0].value), normals(n, 2), gelu_op);
  check_threads(x, normals(n, 2), dropout_op({0.2, 77}));
  check_threads(x, normals(n, 2), [](Tape& t, std::deque<Param>& p) -> Var& { return add(t, p[0].var, p[0].var); });
  const auto tokens = integers(600, 4, 50);
  check_threads({{"wte", {50, 70}, normals(3500, 1)}, {"wpe", {100, 70}, normals(7000, 2)}}, normals(600 * 70, 3),
                [&](Tape& t, std::deque<Param>& p) -> Var& { return embedding(t, tokens.data(), 6, 100, p[0], p[1]); });
}
