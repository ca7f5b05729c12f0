// One row of q or k, above all where other programs went wrong; their public reports are named.
#include "ops/qk_rows.h"
#include "ops/attention_case.h"

using namespace qkgpt;
using namespace qkgpt::test;

namespace {

// The normalised row, without gain.
std::vector<float> forward(QkNorm norm, std::vector<float> x, float eps = 1e-6f) {
  const RowStats s = row_stats(norm, x.data(), static_cast<Index>(x.size()), eps);
  for (float& xc : x) xc = (xc - s.mu) * s.r;
  return x;
}

std::vector<float> backward(QkNorm norm, const std::vector<float>& x, std::vector<float> dout, float eps = 1e-6f) {
  const auto m = static_cast<Index>(x.size());
  row_backward(norm, x.data(), row_stats(norm, x.data(), m, eps), m, eps, nullptr, dout.data(), nullptr);
  return dout;
}

double length(const std::vector<float>& x) {
  double square = 0.0;
  for (const float xc : x) square += static_cast<double>(xc) * static_cast<double>(xc);
  return std::sqrt(square);
}

// dx, given dout; adds to dgain (m).
std::vector<float> backward_with_gain(QkNorm norm, const std::vector<float>& x, const std::vector<float>& gain,
                                      std::vector<float> dout, std::vector<float>& dgain, float eps) {
  const auto m = static_cast<Index>(x.size());
  row_backward(norm, x.data(), row_stats(norm, x.data(), m, eps), m, eps, gain.data(), dout.data(), dgain.data());
  return dout;
}

std::vector<float> floats(const Array<double>& x) { return {x.begin(), x.end()}; }

void check_row(const std::vector<float>& got, const std::vector<double>& want, double relative = 1e-6) {
  CHECK(difference(Array<double>(got), Array<double>(want)) <= relative * largest(Array<double>(want)));
}

constexpr QkNorm normalising[] = {QkNorm::l2, QkNorm::rms, QkNorm::rms_full, QkNorm::layernorm};

}  // namespace

TEST_CASE("the gradient of a zero row is the closed form", "[gradient]") {
  // pytorch/pytorch#184575, #2421, #3264; tensorflow/tensorflow#56796
  const std::vector<float> zero(4, 0.0f), dy = {1.0f, -2.0f, 0.5f, 0.0f};
  for (const QkNorm norm : normalising) CHECK(forward(norm, zero) == zero);
  check_row(backward(QkNorm::l2, zero, dy), {1e6, -2e6, 5e5, 0.0});
  check_row(backward(QkNorm::rms, zero, dy), {1000.0, -2000.0, 500.0, 0.0});
  check_row(backward(QkNorm::layernorm, zero, dy), {1125.0, -1875.0, 625.0, 125.0});
}

TEST_CASE("a row far below epsilon is the same in float32 and in double", "[unit]") {
  // pytorch/pytorch#173039: the default epsilon depended on the type
  const std::vector<float> x = {1e-4f, -2e-4f, 0.5e-4f, 3e-4f, -1e-4f};
  for (const QkNorm norm : normalising) {
    const Array<double> want = reference::normalised(norm, 1e-6, Array<double>(x));
    CHECK(difference(Array<double>(forward(norm, x)), want) <= 1e-6 * largest(want));
  }
}

TEST_CASE("epsilon is where each normalisation says it is", "[unit]") {
  // huggingface/transformers#40842, ggml-org/llama.cpp#28068, ml-explore/mlx-lm#1624
  const std::vector<float> x = {1e-3f, 0.0f, 0.0f, 0.0f};
  CHECK(std::abs(length(forward(QkNorm::l2, x)) - 1.0) < 1e-6);
  CHECK(std::abs(length(forward(QkNorm::rms, x)) - 0.8944272) < 1e-6);
  CHECK(std::abs(length(forward(QkNorm::layernorm, x)) - 0.7947194) < 1e-6);
}

TEST_CASE("rows have length one under l2 and mean square one under rms", "[unit]") {
  // meta-llama/llama-models#320: an l2 norm that divided by the root of the mean square
  for (const Index m : {4, 15, 32, 65}) {
    const Array<double> n = normals(m, 3, 3.0);
    const std::vector<float> x(n.begin(), n.end());
    CHECK(std::abs(length(forward(QkNorm::l2, x)) - 1.0) < 1e-6);
    const double root = std::sqrt(static_cast<double>(m));
    CHECK(std::abs(length(forward(QkNorm::rms, x)) - root) < 1e-6 * root);
    CHECK(std::abs(length(forward(QkNorm::layernorm, x)) - root) < 1e-6 * root);
  }
}

TEST_CASE("rows of every length agree with the formula, forward and backward", "[gradient]") {
  // keras-team/keras#23075: the fast path of an l2 norm gave NaN where the general path did not
  for (const QkNorm norm : normalising)
    for (const Index m : {1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 31, 32, 33, 47, 64, 65}) {
      INFO("norm " << static_cast<int>(norm) << " length " << m);
      const Array<double> x = normals(m, 3), gain = uniforms(m, 4, 0.5, 1.5), dout = normals(m, 5);
      const double eps = to_float(0.05);
      const std::vector<float> xf = floats(x), gf = floats(gain);
      std::vector<float> y(xf.size()), dgain(xf.size(), 0.25f);
      row_forward(xf.data(), row_stats(norm, xf.data(), m, static_cast<float>(eps)), gf.data(), m, y.data());
      const std::vector<float> dx = backward_with_gain(norm, xf, gf, floats(dout), dgain, static_cast<float>(eps));
      Array<double> wanted_y = reference::normalised(norm, eps, x), wanted_dx(m), wanted_dgain(m);
      for (Index c = 0; c < m; ++c) wanted_dgain[c] = 0.25 + dout[c] * wanted_y[c], wanted_y[c] *= gain[c];
      Array<Complex> in(std::vector<double>(x.begin(), x.end()));
      for (Index i = 0; i < m; ++i) {
        in[i].imag(reference::complex_step);
        const Array<Complex> out = reference::normalised(norm, eps, in);
        for (Index c = 0; c < m; ++c) wanted_dx[i] += gain[c] * dout[c] * out[c].imag() / reference::complex_step;
        in[i].imag(0.0);
      }
      CHECK(difference(Array<double>(y), wanted_y) <= 1e-6 * std::max(largest(wanted_y), 1.0));
      CHECK(difference(Array<double>(dgain), wanted_dgain) <= 1e-6 * std::max(largest(wanted_dgain), 1.0));
      CHECK(difference(Array<double>(dx), wanted_dx) <= 2e-6 * std::max(largest(wanted_dx), 1.0));
    }
}

TEST_CASE("a row of one number has a sign under l2 and nothing under layernorm", "[gradient]") {
  // pytorch/pytorch#188375: a LayerNorm over one element had a gradient of its gain
  for (const float x : {3.0f, -0.7f, 1e-3f}) {
    std::vector<float> dgain = {0.0f};
    CHECK(forward(QkNorm::layernorm, {x}) == std::vector<float>{0.0f});
    CHECK(backward_with_gain(QkNorm::layernorm, {x}, {1.3f}, {0.9f}, dgain, 1e-6f)[0] == 0.0f);
    CHECK(dgain[0] == 0.0f);
    check_row(forward(QkNorm::l2, {x}), {std::copysign(1.0, static_cast<double>(x))});
    CHECK(std::abs(backward(QkNorm::l2, {x}, {0.9f})[0]) <= 2e-7f / std::abs(x));
  }
}

TEST_CASE("l2 projects above the clamp and is linear at and below it", "[gradient]") {
  const std::vector<float> dy = {1.0f, 1.0f};
  check_row(backward(QkNorm::l2, {3.0f, 4.0f}, dy, 0.5f), {0.2 * (1.0 - 0.6 * 1.4), 0.2 * (1.0 - 0.8 * 1.4)});
  check_row(backward(QkNorm::l2, {3.0f, 4.0f}, dy, 5.0f), {0.2, 0.2});
  check_row(backward(QkNorm::l2, {3.0f, 4.0f}, dy, 10.0f), {0.1, 0.1});
  check_row(forward(QkNorm::l2, {3.0f, 4.0f}, 10.0f), {0.3, 0.4});
}

TEST_CASE("l2 gives the same bits for every epsilon that a row exceeds", "[unit]") {
  const Array<double> n = normals(15, 3);
  const std::vector<float> x(n.begin(), n.end()), dy(15, 0.3f);
  CHECK(forward(QkNorm::l2, x, 1e-6f) == forward(QkNorm::l2, x, 1e-12f));
  CHECK(backward(QkNorm::l2, x, dy, 1e-6f) == backward(QkNorm::l2, x, dy, 1e-12f));
}

TEST_CASE("a row with a NaN stays one", "[unit]") {
  for (const QkNorm norm : normalising)
    for (const std::size_t place : {0u, 3u}) {
      std::vector<float> x = {1.0f, 2.0f, 3.0f, 4.0f};
      x[place] = NAN;
      for (const float y : forward(norm, x)) CHECK(std::isnan(y));
    }
}

TEST_CASE("a negative g is an ordinary number", "[gradient]") {
  // crowsonkb/k-diffusion#111: a root of the scale. Values and gradients: attention_test.cpp
  AttentionCase a;
  a.norm = QkNorm::l2, a.scale = LogitScale::learned;
  a.fill();
  a.parameter[0] = 0.5;
  const Array<double> S = a.scores();
  a.parameter[0] = -0.5;
  Array<double> negative = a.scores();
  for (Index i = 0; i < S.size(); ++i) negative[i] *= -1.0;
  CHECK(difference(S, negative) < 1e-15);
}

TEST_CASE("huge scales give the right finite gradients", "[gradient]") {
  // openai/CLIP#46: a scale grew until exp overflowed
  AttentionCase l2;
  l2.norm = QkNorm::l2, l2.scale = LogitScale::learned;
  l2.fill(1.0, false);
  l2.parameter[0] = 200.0;
  AttentionCase standard;
  standard.scale = LogitScale::temperature;
  standard.fill();
  standard.parameter[0] = 1e4;
  // scores are rounded to 2^-24 of themselves, and that is the relative error of P
  check_op(l2.leaves(), l2.op(), l2.formula(), 200.0 * 0x1p-22);
  CHECK(largest(l2.scores()) <= 200.0 * (1.0 + 1e-6));
  auto leaves = standard.leaves();
  leaves[0].floor = 1e4 / std::sqrt(5.0);  // P is one-hot nearly everywhere: what is left is rounding times a
  check_op(leaves, standard.op(), standard.formula(), 1e-4);
  for (const double s : stats_of(l2).logit_max) CHECK(s <= 200.0 * (1.0 + 1e-6));
}

TEST_CASE("large equal scores keep the digits of the gradient", "[gradient]") {
  // Scores are 4096 and a little, exact in float32: only the little counts. As in pytorch/pytorch#11752, the
  // rounded sum of the row's maximum and the log of its sum would lose 2^-12.
  AttentionCase a;
  a.B = 1, a.T = 6, a.C = 2, a.H = 1, a.scale = LogitScale::fixed, a.fixed_scale = 1.0;
  a.fill();
  for (Index row = 0; row < a.T; ++row) {
    a.at(row, 0, 0) = a.at(row, 1, 0) = 64.0;
    for (const Index part : {0, 1}) a.at(row, part, 1) = std::round(a.at(row, part, 1) * 32.0) / 32.0;
  }
  auto leaves = a.leaves();
  leaves[0].floor = 1.0;
  check_op(leaves, a.op(), a.formula());
}
