// What must hold whatever the numbers are, each for the formula in double and for the kernels in float32.
#include "ops/attention_case.h"

using namespace qkgpt;
using namespace qkgpt::test;

namespace {

// Every row of q and k that is normalised as one: body(position, part, first channel).
template <class Body>
void for_rows(const AttentionCase& a, Body body) {
  for (Index row = 0; row < a.B * a.T; ++row)
    for (Index c = 0; c < a.C; c += a.gain_size())
      for (const Index part : {0, 1}) body(row, part, c);
}

double dot(const Array<double>& x, Index i, const Array<double>& y, Index j, Index n) {
  double sum = 0.0;
  for (Index c = 0; c < n; ++c) sum += x[i + c] * y[j + c];
  return sum;
}

}  // namespace

TEST_CASE("a gradient through l2 has no component along its row", "[gradient]") {
  for_both([](auto compute, double tolerance) {
    const AttentionCase a = make(QkNorm::l2, LogitScale::learned, 1e-6);
    const Array<double> dx = compute(a).gradients[qkv_gradient];
    for_rows(a, [&](Index row, Index part, Index c) {
      const Index at = row * 3 * a.C + part * a.C + c;
      CHECK(std::abs(dot(a.qkv, at, dx, at, a.d())) <= tolerance);
    });
  });
}

TEST_CASE("a gradient through rms has the component along its row that epsilon leaves", "[gradient]") {
  for_both([](auto compute, double tolerance) {
    // x . dx = eps r^2 (out . dout), with dout from the same attention without normalisation at out = gain y
    for (const QkNorm norm : {QkNorm::rms, QkNorm::rms_full, QkNorm::layernorm}) {
      INFO("norm " << static_cast<int>(norm));
      const AttentionCase a = make(norm, LogitScale::fixed, 0.3);
      const Index m = a.gain_size();
      AttentionCase raw = a;
      raw.norm = QkNorm::none, raw.q_gain = raw.k_gain = Array<double>();
      for_rows(a, [&](Index row, Index part, Index c) {
        Array<double> x(m);
        for (Index i = 0; i < m; ++i) x[i] = a.at(row, part, c + i);
        const Array<double> y = reference::normalised(norm, a.eps, x);
        for (Index i = 0; i < m; ++i) raw.at(row, part, c + i) = y[i] * (part ? a.k_gain : a.q_gain)[i];
      });
      const Array<double> dx = compute(a).gradients[qkv_gradient], dout = compute(raw).gradients[qkv_gradient];
      for_rows(a, [&](Index row, Index part, Index c) {
        const Index at = row * 3 * a.C + part * a.C + c;
        double mean = 0.0, sum = 0.0, square = 0.0;
        if (norm == QkNorm::layernorm)
          for (Index i = 0; i < m; ++i) mean += a.qkv[at + i] / static_cast<double>(m), sum += dx[at + i];
        for (Index i = 0; i < m; ++i) square += (a.qkv[at + i] - mean) * (a.qkv[at + i] - mean);
        const double r2 = 1.0 / (square / static_cast<double>(m) + a.eps);
        CHECK(std::abs(dot(a.qkv, at, dx, at, m) - a.eps * r2 * dot(raw.qkv, at, dout, at, m)) <= tolerance);
        CHECK(std::abs(sum) <= tolerance);
      });
    }
  });
}

TEST_CASE("scores stay within their bounds", "[unit]") {
  for (const Kind& kind : kinds) {
    INFO(kind.name);
    const AttentionCase a = case_of(kind, 2, 9, 8, 2, 30.0);
    double qg = 1.0, kg = 1.0;
    if (!a.q_gain.empty()) qg = largest(a.q_gain), kg = largest(a.k_gain);
    double bound = INFINITY;
    if (kind.cap > 0.0) bound = kind.cap;
    if (kind.norm == QkNorm::l2) bound = kind.scale == LogitScale::fixed ? a.fixed_scale : a.parameter[0];
    if (kind.norm == QkNorm::rms || kind.norm == QkNorm::layernorm) bound = root_d * qg * kg;
    if (kind.norm == QkNorm::rms_full) bound = 2.0 * root_d * qg * kg;
    CHECK(largest(a.scores()) <= bound * (1.0 + 1e-12));
    CHECK(largest(a.scores()) > 0.0);
    AttentionCase aligned = a;  // equal queries and keys come as close to the bound as a score can
    for (Index row = 0; row < a.B * a.T; ++row)
      for (Index c = 0; c < a.C; ++c) aligned.at(row, 1, c) = a.at(row, 0, c);
    const std::vector<double> seen = stats_of(aligned).logit_max;
    const double most = *std::max_element(seen.begin(), seen.end());
    CHECK(most <= bound * (1.0 + 1e-6));
    if (kind.norm == QkNorm::l2 || kind.cap > 0.0) CHECK(most >= bound * (1.0 - 1e-6));
  }
}

TEST_CASE("rows of P sum to one", "[unit]") {
  for_both([](auto compute, double tolerance) {
    for (const Kind& kind : kinds) {
      AttentionCase a = case_of(kind, 2, 9, 8, 2);
      for (Index row = 0; row < a.B * a.T; ++row)
        for (Index c = 0; c < a.C; ++c) a.at(row, 2, c) = 1.0;
      const Array<double> y = compute(a).y;
      CHECK(difference(y, Array<double>(y.size(), 1.0)) <= tolerance);
    }
  });
}

TEST_CASE("rows of dS sum to zero", "[gradient]") {
  for_both([](auto compute, double tolerance) {
    for (const LogitScale scale : {LogitScale::inverse_sqrt, LogitScale::temperature}) {
      // all keys moved by one vector u move every score of a row by q . u: sum over j of dk_j is zero
      const AttentionCase a = make(QkNorm::none, scale);
      const Array<double> dqkv = compute(a).gradients[qkv_gradient];
      for (Index b = 0; b < a.B; ++b)
        for (Index c = 0; c < a.C; ++c) {
          double sum = 0.0;
          for (Index i = 0; i < a.T; ++i) sum += dqkv[(b * a.T + i) * 3 * a.C + a.C + c];
          CHECK(std::abs(sum) <= tolerance);
        }
    }
  });
}

TEST_CASE("the first query sees itself alone and has no gradient", "[gradient]") {
  for_both([](auto compute, double tolerance) {
    for (const Kind& kind : kinds) {
      INFO(kind.name);
      const AttentionCase a = case_of(kind, 2, 5, 8, 2);
      const Result got = compute(a);
      for (Index b = 0; b < a.B; ++b)
        for (Index c = 0; c < a.C; ++c) {
          CHECK(std::abs(got.gradients[qkv_gradient][b * a.T * 3 * a.C + c]) <= tolerance);
          CHECK(std::abs(got.y[b * a.T * a.C + c] - a.at(b * a.T, 2, c)) <= tolerance);
        }
    }
  });
}

TEST_CASE("a longer query or key changes nothing and divides its gradient", "[gradient]") {
  for_both([](auto compute, double tolerance) {
    for (const QkNorm norm : all_norms)
      for (const Index part : {0, 1}) {
        INFO("norm " << static_cast<int>(norm) << " part " << part);
        const AttentionCase a = make(norm, LogitScale::learned);
        AttentionCase longer = a;
        for (Index c = 0; c < a.C; ++c) longer.at(3, part, c) *= 8.0;  // exact in float32
        const Result before = compute(a);
        Result after = compute(longer);
        if (norm == QkNorm::none) {
          CHECK(difference(before.y, after.y) > 1e-3);
          continue;
        }
        for (Index c = 0; c < a.C; ++c) after.gradients[qkv_gradient][3 * 3 * a.C + part * a.C + c] *= 8.0;
        check_same(before, after, tolerance);
      }
  });
}

TEST_CASE("all queries seven times as long change nothing but standard attention", "[gradient]") {
  for_both([](auto compute, double tolerance) {
    for (const Kind& kind : kinds) {
      INFO(kind.name);
      AttentionCase a = case_of(kind, 2, 5, 8, 2);
      a.eps = 1e-30;
      AttentionCase longer = a;
      for (Index row = 0; row < a.B * a.T; ++row)
        for (Index c = 0; c < a.C; ++c) longer.at(row, 0, c) = 7.0 * a.at(row, 0, c);
      const Result before = compute(a);
      Result after = compute(longer);
      if (kind.norm == QkNorm::none) {
        CHECK(difference(before.y, after.y) > 1e-3);
        continue;
      }
      for (Index row = 0; row < a.B * a.T; ++row)
        for (Index c = 0; c < a.C; ++c) after.gradients[qkv_gradient][row * 3 * a.C + c] *= 7.0;
      check_same(before, after, tolerance);
    }
  });
}

TEST_CASE("one rotation of queries and keys changes no score", "[unit]") {
  for_both([](auto compute, double tolerance) {
    for (const QkNorm norm : all_norms) {
      INFO("norm " << static_cast<int>(norm));
      AttentionCase a = make(norm, LogitScale::learned), turned;
      a.q_gain = a.k_gain = Array<double>();
      turned = a;
      for (Index row = 0; row < a.B * a.T; ++row)
        for (Index c = 0; c < a.C; c += a.d())  // channels c, c + 1 by an angle of each head's own
          for (const Index part : {0, 1}) {
            const double angle = 0.5 + static_cast<double>(c), co = std::cos(angle), si = std::sin(angle);
            turned.at(row, part, c) = co * a.at(row, part, c) - si * a.at(row, part, c + 1);
            turned.at(row, part, c + 1) = si * a.at(row, part, c) + co * a.at(row, part, c + 1);
          }
      const double change = difference(compute(a).y, compute(turned).y);
      if (norm == QkNorm::layernorm)
        CHECK(change > 1e-3);  // the centre is not turned
      else
        CHECK(change <= tolerance);
    }
  });
}

TEST_CASE("attention does not care about the order of heads", "[gradient]") {
  for_both([](auto compute, double tolerance) {
    for (const Kind& kind : kinds) {
      INFO(kind.name);
      const AttentionCase a = case_of(kind, 2, 5, 8, 2);
      const auto swapped = [&](Index c) { return (c + 4) % 8; };
      AttentionCase b = a;
      for (Index row = 0; row < a.B * a.T; ++row)
        for (const Index part : {0, 1, 2})
          for (Index c = 0; c < 8; ++c) b.at(row, part, swapped(c)) = a.at(row, part, c);
      if (kind.norm == QkNorm::rms_full)
        for (Index c = 0; c < 8; ++c) b.q_gain[swapped(c)] = a.q_gain[c], b.k_gain[swapped(c)] = a.k_gain[c];
      const Array<double> ya = compute(a).y, yb = compute(b).y;
      Array<double> back(ya.size());
      for (Index row = 0; row < a.B * a.T; ++row)
        for (Index c = 0; c < 8; ++c) back[row * 8 + c] = yb[row * 8 + swapped(c)];
      CHECK(difference(ya, back) <= tolerance);
    }
  });
}
