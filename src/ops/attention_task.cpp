#include "ops/attention_task.h"

#include <cmath>
#include <utility>

#include "kernels/mask.h"
#include "kernels/vmath.h"

namespace qkgpt {
namespace {

constexpr Index strip = 12;  // query rows (or keys) that share the end (or start) of their triangle

// Query rows worked on together: all of a short sequence, else as many as leave P and dP in the cache.
Index query_block(Index T) { return T <= 96 ? T : 48; }

Index panel_space(const AttentionShape& a) { return rounded(std::max(panel_floats(a.T, a.d), panel_floats(a.d, a.T))); }

Index block_space(const AttentionShape& a) { return rounded(panel_floats(query_block(a.T), a.d)); }

// The way back: z becomes P~, dp (the gradient of P~) becomes dz = dS dS/dz, both zero behind n up to `padded`. D is
// dy . y; `mask` is null without dropout. Returns sum dS z.
template <class Logits>
float softmax_row_backward(float* z, float* dp, const float* mask, Index n, Index padded, const Logits& form,
                           RowSoftmax row, float D) {
  const Logits logits = form.of_row(z, n);
  const vec top = splat(row.max), norm = splat(row.norm);
  vec sum{};
  for (Index j = 0; j < padded; j += lanes) {
    if (j >= n) {
      store(z + j, vec{}), store(dp + j, vec{});
      continue;
    }
    const vec zj = load(z + j), m = mask ? load(mask + j) : splat(1.0f);
    vec p = exp(logits(zj) - top) * norm;
    const vec ds = p * (load(dp + j) * m - splat(D));
    vec dz = ds * logits.slope(logits(zj)), dsz = ds * zj;
    p *= m;
    if (j + lanes > n) p = first_lanes(p, n - j), dz = first_lanes(dz, n - j), dsz = first_lanes(dsz, n - j);
    sum += dsz;
    store(z + j, p);
    store(dp + j, dz);
  }
  return sum_lanes(sum);
}

}  // namespace

Index AttentionTask::scratch_floats(const AttentionShape& a) {
  return 2 * rounded(a.T * a.d) + 3 * panel_space(a) + 2 * block_space(a) + (2 * query_block(a.T) + 1) * rounded(a.T);
}

AttentionTask::AttentionTask(const AttentionShape& a, const AttentionSpec& spec, const Dropout& noise, const float* qkv,
                             RowStats* stats, LogitMap logits, Index task, float* scratch, int thread)
    : a_(a), spec_(spec), noise_(noise), stats_(stats), logits_(logits), task_(task), stride_(rounded(a.T)) {
  const Index b = task / a.H;
  head_ = task % a.H;
  qkv_ = qkv + b * a.T * 3 * a.C + head_ * a.d;
  const Index groups = spec.norm == QkNorm::rms_full ? 1 : a.H;
  stats_ += b * a.T * 2 * groups + (groups == 1 ? 0 : head_);
  float* next = scratch + thread * scratch_floats(a);
  const auto take = [&next](Index n) { return std::exchange(next, next + n); };
  normalised_ = take(2 * rounded(a.T * a.d));
  panels_a_ = take(panel_space(a));
  panels_b_ = take(panel_space(a));
  panels_c_ = take(panel_space(a));
  panels_d_ = take(block_space(a));
  panels_e_ = take(block_space(a));
  scores_ = take(query_block(a.T) * stride_);
  dscores_ = take(query_block(a.T) * stride_);
  mask_ = take(stride_);
}

// q^ and k^ = gain (x - mu) r.
void AttentionTask::normalise(bool with_stats) {
  q_ = qkv_;
  k_ = qkv_ + a_.C;
  row_ = 3 * a_.C;
  if (spec_.norm == QkNorm::none) return;
  const bool full = spec_.norm == QkNorm::rms_full;
  const Index groups = full ? 1 : a_.H, d = a_.d;
  for (const Index which : {0, 1}) {
    const Param* param = which ? spec_.k_gain : spec_.q_gain;
    const float* gain = param ? param->value() + (full ? head_ * d : 0) : nullptr;
    float* to = normalised_ + which * rounded(a_.T * d);
    for (Index i = 0; i < a_.T; ++i, to += d) {
      const float* x = qkv_ + i * 3 * a_.C + which * a_.C;
      RowStats& stats = stats_[(2 * i + which) * groups];
      if (with_stats && !full) stats = row_stats(spec_.norm, x, d, static_cast<float>(spec_.eps));
      row_forward(x, stats, gain, d, to);
    }
  }
  q_ = normalised_;
  k_ = normalised_ + rounded(a_.T * d);
  row_ = d;
}

const float* AttentionTask::mask_row(Index i, Index n) const {
  if (noise_.p == 0.0) return nullptr;
  dropout_mask(noise_.p, noise_.key, (task_ * a_.T + i) * stride_, n, mask_);
  return mask_;
}

// Rows [first, last) times `columns` (d, T) -> `to`, of every strip the columns up to its own last row.
void AttentionTask::products(const float* rows, Index stride, Panels columns, Index first, Index last,
                             float* to) const {
  for (Index i = first; i < last; i += strip) {
    const Index end = std::min(i + strip, last);
    const Index wide = std::min((end + panel_width - 1) / panel_width * panel_width, a_.T);
    gemm_serial(end - i, wide, 0, a_.d, {rows + i * stride, stride, 1}, columns, {}, to + (i - first) * stride_,
                stride_);
  }
}

void AttentionTask::forward(float* y, RowSoftmax* softmax) {
  const Index T = a_.T, d = a_.d, C = a_.C;
  y += task_ / a_.H * T * C + head_ * d;
  normalise(true);
  const Panels k_t = pack(k_, 1, row_, d, T, panels_a_);
  const Panels v_rows = pack(v(), 3 * C, 1, T, d, panels_b_);
  for (Index first = 0; first < T; first += query_block(T)) {
    const Index last = std::min(first + query_block(T), T);
    products(q_, row_, k_t, first, last, scores_);
    for (Index begin = first; begin < last; begin += strip) {
      const Index end = std::min(begin + strip, last);
      float* p = scores_ + (begin - first) * stride_;
      for (Index i = begin; i < end; ++i) {
        float* row = p + (i - begin) * stride_;
        softmax[i] = softmax_row(row, i + 1, end, logits_);
        if (const float* mask = mask_row(i, i + 1))
          for (Index j = 0; j <= i; ++j) row[j] *= mask[j];
      }
      gemm_serial(end - begin, d, 0, end, {p, stride_, 1}, v_rows, {}, y + begin * C, C);
    }
  }
}

// dq^ and dk^ become dq and dk, row by row.
void AttentionTask::norm_backward(float* dq, float* dgain) const {
  const Index d = a_.d;
  if (dgain) std::fill_n(dgain, 2 * d, 0.0f);
  for (Index i = 0; i < a_.T; ++i)
    for (const Index which : {0, 1}) {
      const Index at = i * 3 * a_.C + which * a_.C;
      const Param* gain = which ? spec_.k_gain : spec_.q_gain;
      row_backward(spec_.norm, qkv_ + at, stats_[(2 * i + which) * a_.H], d, static_cast<float>(spec_.eps),
                   gain ? gain->value() : nullptr, dq + at, dgain ? dgain + which * d : nullptr);
    }
}

double AttentionTask::backward(const float* y, const float* dy, const RowSoftmax* softmax, float* dqkv, float* dgain) {
  const Index T = a_.T, d = a_.d, C = a_.C, base = task_ / a_.H * T * C + head_ * d;
  y += base;
  dy += base;
  float* dq = dqkv + task_ / a_.H * T * 3 * C + head_ * d;
  float *dk = dq + C, *dv = dq + 2 * C;
  normalise(false);
  const Panels k_t = pack(k_, 1, row_, d, T, panels_a_);
  const Panels v_t = pack(v(), 1, 3 * C, d, T, panels_b_);
  const Panels k = pack(k_, row_, 1, T, d, panels_c_);
  double dscale = 0.0;
  for (Index first = 0; first < T; first += query_block(T)) {
    const Index last = std::min(first + query_block(T), T), n = last - first;
    products(q_, row_, k_t, first, last, scores_);
    products(dy, C, v_t, first, last, dscores_);  // dP~
    for (Index begin = first; begin < last; begin += strip) {
      const Index end = std::min(begin + strip, last);
      for (Index i = begin; i < end; ++i) {
        const float D = row_sum(
            d, [&](Index c, auto count) { return load_part(dy + i * C + c, count) * load_part(y + i * C + c, count); });
        float *z = scores_ + (i - first) * stride_, *dp = dscores_ + (i - first) * stride_;
        const float* mask = mask_row(i, i + 1);
        dscale += static_cast<double>(with_logits(logits_, [&](const auto& logits) {
          return softmax_row_backward(z, dp, mask, i + 1, end, logits, softmax[i], D);
        }));
      }
      gemm_serial(end - begin, d, 0, end, {dscores_ + (begin - first) * stride_, stride_, 1}, k, {}, dq + begin * 3 * C,
                  3 * C);
    }
    const Panels q = pack(q_ + first * row_, row_, 1, n, d, panels_d_);
    const Panels dy_block = pack(dy + first * C, C, 1, n, d, panels_e_);
    // dk = dz^T q^ and dv = P~^T dy of keys [begin, end), over the block's rows from `row` on.
    const auto key_gradients = [&](Index begin, Index end, Index row, bool add) {
      const auto product = [&](const float* weights, Panels rows, float* to) {
        to += begin * 3 * C;
        gemm_serial(end - begin, d, row, n, {weights + begin, 1, stride_}, rows, {add ? to : nullptr, 3 * C}, to,
                    3 * C);
      };
      product(dscores_, q, dk);
      product(scores_, dy_block, dv);
    };
    key_gradients(0, first, 0, true);  // they add to what earlier blocks left; the block's own keys start from zero
    for (Index j = first; j < last; j += strip) key_gradients(j, std::min(j + strip, last), j - first, false);
  }
  if (spec_.norm != QkNorm::none && spec_.norm != QkNorm::rms_full) norm_backward(dq, dgain);
  return dscale;
}

}  // namespace qkgpt
