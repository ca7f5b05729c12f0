// Attention against the formula: values and every gradient.
#include "ops/attention_case.h"

using namespace qkgpt;
using namespace qkgpt::test;

namespace {

// `floor`: what errors are measured by where gradients are zero.
void check_attention(const AttentionCase& a, double floor = 0.0) {
  auto leaves = a.leaves();
  for (Leaf& leaf : leaves) leaf.floor = std::max(leaf.floor, floor);
  check_op(leaves, a.op(), a.formula());
}

}  // namespace

TEST_CASE("attention and its gradients agree with the formula for every norm and scale", "[gradient]") {
  for (const QkNorm norm : all_norms)
    for (const LogitScale scale : all_scales)
      for (const double p : {0.0, 0.2}) {
        INFO("norm " << static_cast<int>(norm) << " scale " << static_cast<int>(scale) << " dropout " << p);
        AttentionCase a;
        a.norm = norm, a.scale = scale, a.noise = {p, 12345};
        check_attention(a.fill());
        check_attention(a.fill(1.0, false));
      }
}

TEST_CASE("attention agrees with the formula at odd sizes", "[gradient]") {
  for (const Kind& kind : kinds) {
    INFO(kind.name);
    check_attention(case_of(kind, 3, 1, 8, 2), 1.0);  // T = 1: P is 1, so q and k have no gradient
    check_attention(case_of(kind, 1, 2, 6, 1), 0.1);  // two positions: nearly no gradient
    check_attention(case_of(kind, 2, 17, 6, 2));
    check_attention(case_of(kind, 1, 5, 34, 2));  // d = 17
  }
}

TEST_CASE("scores behind a row are without influence, however far beyond a cap", "[gradient]") {
  AttentionCase a = make(QkNorm::none, LogitScale::inverse_sqrt);
  a.cap = 0.01;
  for (Index row = 0; row < a.B * a.T; ++row)  // what the first rows see is far below the cap, what follows far above
    for (Index c = 0; c < a.C; ++c) a.at(row, 1, c) = to_float(a.at(row, 1, c) * (row % a.T < 3 ? 1e-4 : 1e3));
  check_attention(a, 1.0);
}

TEST_CASE("attention of heads of one channel agrees with the formula", "[gradient]") {
  for (const Kind& kind : kinds) {
    INFO(kind.name);
    // l2 and layernorm of one number are constant: their gradients are zero, and what is left is the rounding of
    // that zero times 1 / |x| or 1 / sqrt(eps)
    const double floor = kind.norm == QkNorm::layernorm ? 1000.0 : kind.norm == QkNorm::l2 ? 10.0 : 1.0;
    check_attention(case_of(kind, 2, 6, 3, 3), floor);
  }
}

TEST_CASE("attention agrees with the formula beyond a block of queries", "[gradient]") {
  for (const Kind& kind : kinds)
    for (const double p : {0.0, 0.1}) {
      INFO(kind.name << " dropout " << p);
      AttentionCase a = case_of(kind, 2, 100, 24, 2);
      a.noise = {p, 99};
      check_op_sampled(a.leaves(), a.op(), a.formula(), 24);
      AttentionCase b = case_of(kind, 1, 49, 12, 1);
      b.noise = {p, 99};
      check_op_sampled(b.leaves(), b.op(), b.formula(), 100);
      AttentionCase c = case_of(kind, 2, 37, 24, 2);
      c.noise = {p, 99};
      check_op_sampled(c.leaves(), c.op(), c.formula(), 100);
    }
}

TEST_CASE("attention agrees with the formula when epsilon decides", "[gradient]") {
  for (const QkNorm norm : {QkNorm::l2, QkNorm::rms, QkNorm::rms_full, QkNorm::layernorm})
    for (const bool gains : {false, true}) {
      INFO("norm " << static_cast<int>(norm) << " gains " << gains);
      AttentionCase a;
      a.norm = norm, a.scale = LogitScale::learned;
      a.eps = 1e-6;
      check_attention(a.fill(1e-3, gains));  // rows whose mean square is about epsilon
      check_attention(a.fill(2e-4, gains));
      a.eps = 2.0;
      check_attention(a.fill(1.0, gains));  // rows of ordinary size on both sides of the clamp
      a.eps = 1e-6;
      check_attention(a.fill(5e-7, gains));  // the same at the real epsilon
      check_attention(a.fill(1e-8, gains));
    }
}

TEST_CASE("attention agrees with the formula for g zero and negative", "[gradient]") {
  for (const QkNorm norm : {QkNorm::none, QkNorm::l2})
    for (const double g : {0.0, -0.5, -3.0, 12.0}) {
      INFO("norm " << static_cast<int>(norm) << " g " << g);
      AttentionCase a;
      a.norm = norm, a.scale = LogitScale::learned;
      a.fill();
      a.parameter[0] = g;
      check_attention(a, g == 0.0 ? 1e-3 : 0.0);
      a.scale = LogitScale::temperature;
      check_attention(a, g == 0.0 ? 1e-3 : 0.0);
    }
}

TEST_CASE("attention agrees with the formula for zero and identical rows", "[gradient]") {
  for (const Kind& kind : kinds) {
    INFO(kind.name);
    AttentionCase a = case_of(kind, 2, 7, 15, 3);
    for (Index c = 0; c < a.C; ++c) {
      a.at(2, 0, c) = a.at(3, 1, c) = a.at(9, 0, c) = a.at(9, 1, c) = 0.0;  // q, k, both
      for (const Index row : {4, 5}) a.at(row, 0, c) = a.at(6, 0, c), a.at(row, 1, c) = a.at(6, 1, c);
    }
    check_attention(a);
  }
}

TEST_CASE("a zero row does not disturb the gradients of the others", "[gradient]") {
  // its own gradient is 1 / eps as large: every row is measured by itself
  for (const Kind& kind : kinds) {
    INFO(kind.name);
    AttentionCase a = case_of(kind, 2, 7, 15, 3);
    for (Index c = 0; c < a.C; ++c) a.at(2, 0, c) = a.at(3, 1, c) = a.at(9, 0, c) = a.at(9, 1, c) = 0.0;
    const Result got = by_kernels(a), want = by_formula(a);
    CHECK(difference(got.y, want.y) <= float_tolerance);
    Index large = 0;
    for (Index row = 0; row < a.B * a.T * 3 * a.H; ++row) {
      Array<double> x(a.d()), y(a.d());
      for (Index c = 0; c < a.d(); ++c) {
        x[c] = got.gradients[qkv_gradient][row * a.d() + c];
        y[c] = want.gradients[qkv_gradient][row * a.d() + c];
      }
      INFO("row " << row);
      CHECK(difference(x, y) <= float_tolerance * std::max(largest(y), 1.0));
      large += largest(y) > 20.0;
    }
    CHECK(large == (kind.norm == QkNorm::none ? 0 : 4 * a.H));
  }
}

TEST_CASE("gain gradients sum over all rows and heads", "[gradient]") {
  // intel/torch-xpu-ops#4790, FlagGems#1084: wrong above some number of rows
  for (const Kind& kind : kinds)
    for (const Index B : {1, 7, 241}) {
      AttentionCase a = case_of(kind, B, B == 241 ? 17 : 1, 4, 2);
      if (B == 241) CHECK(a.B * a.T == 4097);
      INFO(kind.name << " B " << B);
      auto leaves = a.leaves();
      for (Leaf& leaf : leaves) leaf.floor = std::max(leaf.floor, a.T == 1 ? 1.0 : 0.1);
      check_op_sampled(leaves, a.op(), a.formula(), 6);
    }
}

TEST_CASE("attention dropout keeps the stated share and the mean of the weights", "[unit]") {
  AttentionCase a;
  a.B = 20, a.T = 33, a.C = 32, a.H = 4, a.noise = {0.3, 4242};
  a.fill();
  for (Index row = 0; row < a.B * a.T; ++row)
    for (Index c = 0; c < a.C; ++c) a.at(row, 2, c) = 1.0;  // y is the sum of the dropped weights
  double n = 0.0, kept = 0.0, sum = 0.0;
  const Array<double> mask = a.mask();
  for (const double m : mask) n += 1.0, kept += m != 0.0;
  CHECK(std::abs(kept / n - 0.7) < 5.0 * std::sqrt(0.21 / n));
  const Array<double> y = by_kernels(a).y;
  for (const double v : y) sum += v / static_cast<double>(y.size());
  CHECK(std::abs(sum - 1.0) < 0.03);
}

TEST_CASE("attention gives the same bits with 1 2 and 3 threads", "[unit]") {
  for (const Kind& kind : kinds) {
    INFO(kind.name);
    AttentionCase a = case_of(kind, 4, 100, 36, 3);
    a.noise = {0.1, 5};
    check_threads(a.leaves(), loss_weights(a), a.op());
  }
}

TEST_CASE("a query or key that is not a number reaches the output", "[unit]") {
  for (const Kind& kind : kinds)
    for (const Index part : {0, 1}) {
      INFO(kind.name << " part " << part);
      AttentionCase a = case_of(kind, 1, 20, 8, 2);
      a.at(5, part, 3) = NAN;
      const Result got = run(a.leaves(), loss_weights(a), a.op());
      CHECK(std::isnan(got.y[(part == 0 ? 5 : 19) * a.C]));
      CHECK_FALSE(std::isnan(got.y[4 * a.C]));  // earlier rows do not see it
    }
}

TEST_CASE("attention refuses a gradient that another reader of qkv left", "[unit]") {
  AttentionCase a = case_of(kinds[0], 1, 3, 4, 2);
  auto leaves = a.leaves();
  leaves[0].adds = true;
  CHECK_THROWS_AS(run(leaves, loss_weights(a), a.op(), 1.0f, true), std::logic_error);
}
