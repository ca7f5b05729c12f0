// Diagnostics of one layer's attention, in double and straight from the formulas of attention.cpp: the largest
// score, and for rows i >= 1 (row 0 has one key) the mean of entropy / ln(i + 1) and of the largest weight.
// Entropy is ln Z - sum p (S - max): no logarithm of zero.
#include <cmath>

#include "kernels/parallel.h"
#include "ops/attention_task.h"
#include "ops/ops.h"

namespace qkgpt {
namespace {

struct HeadSums {
  double logit_max = -INFINITY, entropy = 0.0, p_max = 0.0, q_norm = 0.0, k_norm = 0.0;
};

double length(const float* x, Index n) {
  double square = 0.0;
  for (Index c = 0; c < n; ++c) square += static_cast<double>(x[c]) * static_cast<double>(x[c]);
  return std::sqrt(square);
}

// norm(x) of one head's channels, in double.
void normalised(const AttentionSpec& spec, const AttentionShape& a, const float* row, Index head, const Param* gain,
                double* y) {
  const bool full = spec.norm == QkNorm::rms_full;
  const float* x = row + head * a.d;
  const RowStats s = row_stats(spec.norm, full ? row : x, full ? a.C : a.d, static_cast<float>(spec.eps));
  for (Index c = 0; c < a.d; ++c) {
    y[c] = (static_cast<double>(x[c]) - static_cast<double>(s.mu)) * static_cast<double>(s.r);
    if (gain) y[c] *= static_cast<double>(gain->value()[(full ? head * a.d : 0) + c]);
  }
}

HeadSums head_sums(const AttentionSpec& spec, const AttentionShape& a, const float* qkv, Index head) {
  const double scale = static_cast<double>(logit_scale(spec, a.d));
  const double cap = spec.softcap;
  std::vector<double> k(static_cast<std::size_t>(a.T * a.d)), q(static_cast<std::size_t>(a.d));
  std::vector<double> z(static_cast<std::size_t>(a.T));
  HeadSums sums;
  for (Index i = 0; i < a.T; ++i) {
    const float* row = qkv + i * 3 * a.C;
    sums.q_norm += length(row + head * a.d, a.d);
    sums.k_norm += length(row + a.C + head * a.d, a.d);
    normalised(spec, a, row, head, spec.q_gain, q.data());
    normalised(spec, a, row + a.C, head, spec.k_gain, k.data() + i * a.d);
    double max = -INFINITY;
    for (Index j = 0; j <= i; ++j) {
      double dot = 0.0;
      for (Index c = 0; c < a.d; ++c) dot += q[static_cast<std::size_t>(c)] * k[static_cast<std::size_t>(j * a.d + c)];
      const double S = cap > 0.0 ? cap * std::tanh(scale * dot / cap) : scale * dot;
      z[static_cast<std::size_t>(j)] = S;
      max = std::max(max, S);
    }
    sums.logit_max = std::max(sums.logit_max, max);
    if (i == 0) continue;
    double sum = 0.0, weighted = 0.0;
    for (Index j = 0; j <= i; ++j) {
      const double shifted = z[static_cast<std::size_t>(j)] - max, e = std::exp(shifted);
      sum += e;
      weighted += e * shifted;
    }
    sums.entropy += (std::log(sum) - weighted / sum) / std::log(static_cast<double>(i + 1));
    sums.p_max += 1.0 / sum;
  }
  return sums;
}

}  // namespace

AttentionStats attention_stats(const Tensor& qkv, const AttentionSpec& spec) {
  const AttentionShape a(qkv.shape, spec.n_head);
  std::vector<HeadSums> sums(static_cast<std::size_t>(a.B * a.H));
  parallel_for(a.B * a.H, 1, [&](Index begin, Index end, int) {
    for (Index t = begin; t < end; ++t)
      sums[static_cast<std::size_t>(t)] = head_sums(spec, a, qkv.data + t / a.H * a.T * 3 * a.C, t % a.H);
  });
  AttentionStats stats;
  const auto positions = static_cast<double>(a.B * a.T), rows = static_cast<double>(a.B * (a.T - 1));
  for (Index h = 0; h < a.H; ++h) {
    HeadSums total;
    for (Index b = 0; b < a.B; ++b) {
      const HeadSums& s = sums[static_cast<std::size_t>(b * a.H + h)];
      total.logit_max = std::max(total.logit_max, s.logit_max);
      total.entropy += s.entropy, total.p_max += s.p_max;
      total.q_norm += s.q_norm, total.k_norm += s.k_norm;
    }
    stats.logit_max.push_back(total.logit_max);
    stats.entropy.push_back(a.T > 1 ? total.entropy / rows : 0.0);
    stats.p_max.push_back(a.T > 1 ? total.p_max / rows : 1.0);
    stats.q_norm.push_back(total.q_norm / positions);
    stats.k_norm.push_back(total.k_norm / positions);
  }
  switch (spec.scale) {
    case LogitScale::inverse_sqrt: stats.scale = 1.0 / std::sqrt(static_cast<double>(a.d)); break;
    case LogitScale::fixed: stats.scale = spec.fixed_scale; break;
    case LogitScale::temperature:
    case LogitScale::learned: stats.scale = static_cast<double>(spec.scale_param->value()[0]); break;
  }
  return stats;
}

}  // namespace qkgpt
