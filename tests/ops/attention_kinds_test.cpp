// Equivalences between the kinds of attention, for the formula in double and for the kernels in float32, with
// an epsilon of nothing so that they are exact.
#include "ops/attention_case.h"

using namespace qkgpt;
using namespace qkgpt::test;

namespace {

AttentionCase without_gains(AttentionCase a) {
  a.q_gain = a.k_gain = Array<double>();
  return a;
}

AttentionCase with_parameter(AttentionCase a, double value) {
  a.parameter = Array<double>(1, value);
  return a;
}

AttentionCase fixed_at(QkNorm norm, double g) {
  AttentionCase a = without_gains(make(norm, LogitScale::fixed));
  a.fixed_scale = g;
  return a;
}

// q and k as `norm` makes them, ready for an attention that does not normalise.
AttentionCase normalised_first(AttentionCase a) {
  for (Index row = 0; row < a.B * a.T; ++row)
    for (Index first = 0; first < a.C; first += a.d())
      for (const Index part : {0, 1}) {
        Array<double> x(a.d());
        for (Index c = 0; c < a.d(); ++c) x[c] = a.at(row, part, first + c);
        const Array<double> y = reference::normalised(a.norm, a.eps, x);
        for (Index c = 0; c < a.d(); ++c) a.at(row, part, first + c) = y[c];
      }
  a.norm = QkNorm::none;
  return without_gains(a);
}
}  // namespace

TEST_CASE("qk_norm with g sqrt d is qk_norm_fixed and qk_rmsnorm without gains", "[gradient]") {
  for_both([](auto compute, double tolerance) {
    const Result l2 = compute(with_parameter(without_gains(make(QkNorm::l2, LogitScale::learned)), root_d));
    check_same(l2, compute(fixed_at(QkNorm::l2, root_d)), tolerance);
    AttentionCase rms = make(QkNorm::rms, LogitScale::inverse_sqrt);
    rms.q_gain = rms.k_gain = Array<double>(4, 1.0);
    check_same(l2, compute(rms), tolerance);
    rms.eps = 0.01;  // the epsilons differ
    CHECK(difference(l2.y, compute(rms).y) > 1e-4);
  });
}

TEST_CASE("qk_rmsnorm_full is qk_rmsnorm where there is one head and differs where there are two", "[gradient]") {
  for_both([](auto compute, double tolerance) {
    AttentionCase full = make(QkNorm::rms_full, LogitScale::inverse_sqrt, 0.05), each = full;
    full.H = each.H = 1;
    each.norm = QkNorm::rms;
    const Result a = compute(full), b = compute(each);
    check_same(a, b, tolerance);
    CHECK(difference(a.gradients[q_gain_gradient], b.gradients[q_gain_gradient]) <= tolerance);
    CHECK(difference(a.gradients[k_gain_gradient], b.gradients[k_gain_gradient]) <= tolerance);
    CHECK(difference(compute(without_gains(make(QkNorm::rms_full, LogitScale::inverse_sqrt))).y,
                     compute(without_gains(make(QkNorm::rms, LogitScale::inverse_sqrt))).y) > 1e-3);
  });
}

TEST_CASE("qk_layernorm is qk_rmsnorm on centred rows and its gradient the centred one", "[gradient]") {
  for_both([](auto compute, double tolerance) {
    AttentionCase rms = make(QkNorm::rms, LogitScale::inverse_sqrt, 0.05);
    const Index d = rms.d();
    for (Index row = 0; row < rms.B * rms.T; ++row)
      for (Index first = 0; first < rms.C; first += d)
        for (const Index part : {0, 1}) {
          double others = 0.0;
          for (Index c = 1; c < d; ++c) {
            rms.at(row, part, first + c) = std::round(rms.at(row, part, first + c) * 1024.0) / 1024.0;
            others += rms.at(row, part, first + c);
          }
          rms.at(row, part, first) = -others;  // exactly centred, in float32 too
        }
    AttentionCase layer = rms;
    layer.norm = QkNorm::layernorm;
    const Result a = compute(layer);
    Result b = compute(rms);
    for (Index at = 0; at < rms.qkv.size(); at += d) {
      if (at % (3 * rms.C) >= 2 * rms.C) continue;  // v
      double mean = 0.0;
      for (Index c = 0; c < d; ++c) mean += b.gradients[qkv_gradient][at + c] / static_cast<double>(d);
      for (Index c = 0; c < d; ++c) b.gradients[qkv_gradient][at + c] -= mean;
    }
    check_same(a, b, tolerance);
    CHECK(difference(a.gradients[q_gain_gradient], b.gradients[q_gain_gradient]) <= tolerance);
    CHECK(difference(a.gradients[k_gain_gradient], b.gradients[k_gain_gradient]) <= tolerance);
  });
}

TEST_CASE("the gradient of g is that of the unit rows along themselves over g", "[gradient]") {
  for_both([](auto compute, double tolerance) {
    const AttentionCase a = make(QkNorm::l2, LogitScale::learned), unit = normalised_first(a);
    const Result got = compute(without_gains(a)), at_unit = compute(unit);
    const double dg = got.gradients[scale_gradient][0], g = a.parameter[0];
    CHECK(std::abs(dg) > 1e-2);
    CHECK(std::abs(dg - at_unit.gradients[scale_gradient][0]) <= tolerance);
    for (const Index part : {0, 1}) {
      double sum = 0.0;
      for (Index row = 0; row < a.B * a.T; ++row)
        for (Index c = 0; c < a.C; ++c)
          sum += unit.at(row, part, c) * at_unit.gradients[qkv_gradient][row * 3 * a.C + part * a.C + c];
      CHECK(std::abs(dg - sum / g) <= 2.0 * tolerance);
    }
  });
}

TEST_CASE("standard_temperature at 1 is standard to the bit", "[gradient]") {
  const AttentionCase standard = make(QkNorm::none, LogitScale::inverse_sqrt);
  const AttentionCase one = with_parameter(make(QkNorm::none, LogitScale::temperature), 1.0);
  for_both([&](auto compute, double) {
    const Result a = compute(standard), b = compute(one);
    CHECK(a.y == b.y);
    CHECK(difference(a.gradients[qkv_gradient], b.gradients[qkv_gradient]) <= 1e-15);
  });
  CHECK(by_kernels(standard).gradients[qkv_gradient] == by_kernels(one).gradients[qkv_gradient]);
}

TEST_CASE("softcap with a high cap is standard but for the cubic term of tanh", "[gradient]") {
  // tau tanh(s / tau) = s - s^3 / (3 tau^2) + ...
  const AttentionCase standard = make(QkNorm::none, LogitScale::inverse_sqrt);
  const Array<double> S = standard.scores();
  for (const double tau : {1e2, 1e3}) {
    AttentionCase capped = standard;
    capped.cap = tau;
    const double change = difference(S, capped.scores()), cubic = std::pow(largest(S), 3.0) / (3.0 * tau * tau);
    CHECK(change <= cubic * 1.001);
    CHECK(change >= cubic * 0.99);
    for_both([&](auto compute, double tolerance) {
      const Result a = compute(standard), b = compute(capped);
      check_same(a, b, 20.0 * cubic + tolerance);
    });
  }
}

TEST_CASE("standard_temperature on unit rows is qk_norm", "[gradient]") {
  for_both([](auto compute, double tolerance) {
    const AttentionCase a = without_gains(make(QkNorm::l2, LogitScale::learned));
    AttentionCase unit = with_parameter(normalised_first(a), a.parameter[0] * root_d);
    unit.scale = LogitScale::temperature;
    const Result l2 = compute(a), standard = compute(unit);
    CHECK(difference(l2.y, standard.y) <= tolerance);
    CHECK(std::abs(standard.gradients[scale_gradient][0] * root_d - l2.gradients[scale_gradient][0]) <= tolerance);
  });
}

TEST_CASE("qk_norm_fixed is qk_norm to the bit", "[gradient]") {
  const double g = 1.75;
  const AttentionCase learned = with_parameter(without_gains(make(QkNorm::l2, LogitScale::learned)), g);
  for_both([&](auto compute, double) {
    const Result a = compute(learned), b = compute(fixed_at(QkNorm::l2, g));
    CHECK(a.y == b.y);
    CHECK(difference(a.gradients[qkv_gradient], b.gradients[qkv_gradient]) <= 1e-15);
  });
  CHECK(by_kernels(learned).gradients[qkv_gradient] == by_kernels(fixed_at(QkNorm::l2, g)).gradients[qkv_gradient]);
}

TEST_CASE("qk_rmsnorm with constant gains is qk_norm_fixed", "[gradient]") {
  for_both([](auto compute, double tolerance) {
    for (const double c : {1.0, 1.25}) {
      AttentionCase rms = make(QkNorm::rms, LogitScale::inverse_sqrt);
      rms.q_gain = rms.k_gain = Array<double>(4, c);
      check_same(compute(rms), compute(fixed_at(QkNorm::l2, c * c * root_d)), tolerance);
    }
  });
}

TEST_CASE("a constant added to a row changes nothing in qk_layernorm alone", "[unit]") {
  for_both([](auto compute, double tolerance) {
    for (const QkNorm norm : all_norms) {
      INFO("norm " << static_cast<int>(norm));
      const AttentionCase a = make(norm, LogitScale::learned);
      AttentionCase moved = a;
      for (Index c = 0; c < a.d(); ++c) moved.at(7, 1, c) += 1.5;
      const double change = difference(compute(a).y, compute(moved).y);
      if (norm == QkNorm::layernorm)
        CHECK(change <= tolerance);
      else
        CHECK(change > 1e-3);
    }
  });
}
