#include "ops/attention_task.h"

#include <cmath>
#include <utility>

#include "kernels/gemm.h"
#include "kernels/mask.h"
#include "kernels/vmath.h"

namespace qkgpt {
namespace {

constexpr Index query_block = 48;  // query rows worked on together

Index rounded(Index n) { return (n + 15) / 16 * 16; }

Index panel_space(const AttentionShape& a) { return rounded(std::max(panel_floats(a.T, a.d), panel_floats(a.d, a.T))); }

Index block_space(const AttentionShape& a) { return rounded(panel_floats(query_block, a.d)); }

// exp(z - shift) for z[0 .. n), in place; returns the sum. z[n .. padded) becomes zero.
float exp_row(float* z, Index n, Index padded, float shift) {
  vec sum{};
  Index j = 0;
  for (; j + lanes <= n; j += lanes) {
    const vec e = exp(load(z + j) - splat(shift));
    store(z + j, e);
    sum += e;
  }
  if (j < n) {
    float e[lanes];
    store(e, exp(load_part(z + j, n - j) - splat(shift)));
    for (Index i = n - j; i < lanes; ++i) e[i] = 0.0f;
    std::memcpy(z + j, e, static_cast<std::size_t>(n - j) * sizeof(float));
    sum += load(e);
  }
  std::fill(z + n, z + padded, 0.0f);
  return sum_lanes(sum);
}

float max_row(const float* z, Index n) {
  vec v = splat(z[0]);
  Index j = 0;
  for (; j + lanes <= n; j += lanes) v = max(load(z + j), v);
  float m = max_lanes(v);
  for (; j < n; ++j) m = z[j] > m ? z[j] : m;
  return m;
}

}  // namespace

Index AttentionTask::scratch_floats(const AttentionShape& a) {
  return 3 * rounded(a.T * a.d) + 3 * panel_space(a) + 2 * block_space(a) + (2 * query_block + 1) * rounded(a.T);
}

AttentionTask::AttentionTask(const AttentionShape& a, const AttentionSpec& spec, const Dropout& noise, const float* qkv,
                             const RowStats* stats, float scale, Index task, float* scratch, int thread)
    : a_(a), spec_(spec), noise_(noise), stats_(stats), scale_(scale), task_(task), stride_(rounded(a.T)) {
  const Index b = task / a.H;
  head_ = task % a.H;
  qkv_ = qkv + b * a.T * 3 * a.C + head_ * a.d;
  const Index groups = spec.norm == QkNorm::rms_full ? 1 : a.H;
  stats_ += b * a.T * 2 * groups + (groups == 1 ? 0 : head_);
  float* next = scratch + thread * scratch_floats(a);
  const auto take = [&next](Index n) { return std::exchange(next, next + n); };
  q_ = take(rounded(a.T * a.d));
  k_ = take(rounded(a.T * a.d));
  u_ = take(rounded(a.T * a.d));
  panels_a_ = take(panel_space(a));
  panels_b_ = take(panel_space(a));
  panels_c_ = take(panel_space(a));
  panels_d_ = take(block_space(a));
  panels_e_ = take(block_space(a));
  scores_ = take(query_block * stride_);
  dscores_ = take(query_block * stride_);
  mask_ = take(stride_);
}

// q~ = s gain (x - mu) r and k~ = gain (x - mu) r.
void AttentionTask::prepare_rows() {
  const Index groups = spec_.norm == QkNorm::rms_full ? 1 : a_.H;
  const Index gain_offset = groups == 1 ? head_ * a_.d : 0;
  for (Index i = 0; i < a_.T; ++i)
    for (const Index which : {0, 1}) {
      const float* x = q_row(i) + which * a_.C;
      const RowStats s = stats_[(2 * i + which) * groups];
      const Param* gain = which ? spec_.k_gain : spec_.q_gain;
      const float factor = which ? s.r : s.r * scale_;
      float* to = (which ? k_ : q_) + i * a_.d;
      for (Index c = 0; c < a_.d; ++c) to[c] = (x[c] - s.mu) * factor;
      if (gain)
        for (Index c = 0; c < a_.d; ++c) to[c] *= gain->value()[gain_offset + c];
    }
}

// norm(q): q~ before the factor s, which may be 0 and cannot be divided out.
float AttentionTask::q_hat(Index i, Index c) const {
  const bool full = spec_.norm == QkNorm::rms_full;
  const RowStats s = stats_[2 * i * (full ? 1 : a_.H)];
  const float y = (q_row(i)[c] - s.mu) * s.r;
  return spec_.q_gain ? y * spec_.q_gain->value()[(full ? head_ * a_.d : 0) + c] : y;
}

void AttentionTask::mask_row(Index i, Index n, float* mask) const {
  dropout_mask(noise_.p, noise_.key, (task_ * a_.T + i) * stride_, n, mask);
}

void AttentionTask::scores(Index first, Index last) {
  gemm_serial(last - first, last, 0, a_.d, {q_ + first * a_.d, a_.d, 1}, {panels_a_, a_.d, a_.T}, {}, scores_, stride_);
}

void AttentionTask::forward(float* y, RowSoftmax* softmax) {
  const Index T = a_.T, d = a_.d;
  y += task_ / a_.H * T * a_.C + head_ * d;
  prepare_rows();
  pack(k_, 1, d, d, T, panels_a_);  // k~^T
  const Panels v = pack(q_row(0) + 2 * a_.C, 3 * a_.C, 1, T, d, panels_b_);
  for (Index first = 0; first < T; first += query_block) {
    const Index last = std::min(first + query_block, T);
    scores(first, last);
    for (Index i = first; i < last; ++i) {
      float* p = scores_ + (i - first) * stride_;
      const float max = max_row(p, i + 1), sum = exp_row(p, i + 1, last, max), norm = 1.0f / sum;
      softmax[i] = {max, norm};
      for (Index j = 0; j <= i; ++j) p[j] *= norm;
      if (noise_.p > 0.0) {
        mask_row(i, i + 1, mask_);
        for (Index j = 0; j <= i; ++j) p[j] *= mask_[j];
      }
    }
    gemm_serial(last - first, d, 0, last, {scores_, stride_, 1}, v, {}, y + first * a_.C, a_.C);
  }
}

double AttentionTask::backward(const float* y, const float* dy, const RowSoftmax* softmax, float* dqkv) {
  const Index T = a_.T, d = a_.d, C = a_.C, base = task_ / a_.H * T * C + head_ * d;
  y += base;
  dy += base;
  float* dq = dqkv + task_ / a_.H * T * 3 * C + head_ * d;
  float *dk = dq + C, *dv = dq + 2 * C;
  prepare_rows();
  pack(k_, 1, d, d, T, panels_a_);                                       // k~^T
  const Panels v_t = pack(q_row(0) + 2 * C, 1, 3 * C, d, T, panels_b_);  // v^T
  const Panels k = pack(k_, d, 1, T, d, panels_c_);
  for (Index first = 0; first < T; first += query_block) {
    const Index last = std::min(first + query_block, T), n = last - first;
    scores(first, last);
    gemm_serial(n, last, 0, d, {dy + first * C, C, 1}, v_t, {}, dscores_, stride_);  // dP
    for (Index i = first; i < last; ++i) {
      float *p = scores_ + (i - first) * stride_, *dp = dscores_ + (i - first) * stride_;
      exp_row(p, i + 1, last, softmax[i].max);
      for (Index j = 0; j <= i; ++j) p[j] *= softmax[i].norm;
      const float D = row_sum(d, [&](Index c) { return dy[i * C + c] * y[i * C + c]; });
      if (noise_.p > 0.0) {
        mask_row(i, i + 1, mask_);
        for (Index j = 0; j <= i; ++j) dp[j] = p[j] * (dp[j] * mask_[j] - D), p[j] *= mask_[j];
      } else {
        for (Index j = 0; j <= i; ++j) dp[j] = p[j] * (dp[j] - D);
      }
      std::fill(dp + i + 1, dp + last, 0.0f);
    }
    gemm_serial(n, d, 0, last, {dscores_, stride_, 1}, k, {}, u_ + first * d, d);
    const Panels q = pack(q_ + first * d, d, 1, n, d, panels_d_);
    const Panels dy_block = pack(dy + first * C, C, 1, n, d, panels_e_);
    // Keys before this block add to what earlier blocks left; the block's own keys start from zero.
    const auto key_gradients = [&](Index begin, Index end, bool add) {
      const auto product = [&](const float* weights, Panels rows, float* to) {
        to += begin * 3 * C;
        gemm_serial(end - begin, d, 0, n, {weights + begin, 1, stride_}, rows, {add ? to : nullptr, 3 * C}, to, 3 * C);
      };
      product(dscores_, q, dk);
      product(scores_, dy_block, dv);
    };
    key_gradients(0, first, true);
    key_gradients(first, last, false);
  }
  double dscale = 0.0;
  for (Index i = 0; i < T; ++i) {
    const float* u = u_ + i * d;
    if (spec_.scale_param)
      for (Index c = 0; c < d; ++c) dscale += static_cast<double>(q_hat(i, c)) * static_cast<double>(u[c]);
    for (Index c = 0; c < d; ++c) dq[i * 3 * C + c] = scale_ * u[c];
  }
  return dscale;
}

}  // namespace qkgpt
