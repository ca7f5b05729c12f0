// Softmax of one row of scores: the same bits whether the row stands in a block of many or alone.
#pragma once
#include "kernels/vmath.h"

namespace qkgpt {

// Floats of a row of n scores: whole vectors of any width.
inline Index rounded(Index n) { return (n + 15) / 16 * 16; }

// P_ij = exp(S_ij - max) norm. The two are kept apart: their log-sum-exp, rounded, would lose the digits of P
// where scores are large (pytorch/pytorch#11752), and so P has the same bits on the way back.
struct RowSoftmax {
  float max, norm;
};

// What softmax sees of a product z: S = scale z, or with a cap (Gemma 2) S = cap tanh(scale z / cap).
struct LogitMap {
  float scale, cap;  // cap 0: none
};

// The two forms, each with dS/dz where it gives S. Apart, so that the compiler rounds exp(S - max) in the same way
// forward and backward. `of_row` knows the n products that will be asked for.
struct PlainLogits {
  vec scale;
  explicit PlainLogits(LogitMap m) : scale(splat(m.scale)) {}
  PlainLogits of_row(const float*, Index) const { return *this; }
  vec operator()(vec z) const { return z * scale; }
  vec slope(vec) const { return scale; }
};
struct CappedLogits {
  vec scale, cap, inner, inverse;
  explicit CappedLogits(LogitMap m)
      : scale(splat(m.scale)), cap(splat(m.cap)), inner(splat(m.scale / m.cap)), inverse(splat(1.0f / m.cap)) {}
  bool near = false;  // all scores of the row are far below the cap: the cheap half of tanh gives the same bits
  CappedLogits of_row(const float* z, Index n) const {
    vec most{};
    for (Index j = 0; j < n; j += lanes) most = max(first_lanes(abs(load(z + j) * inner), n - j), most);
    CappedLogits row = *this;
    row.near = max_lanes(most) < tanh_near_end;
    return row;
  }
  vec operator()(vec z) const { return cap * (near ? tanh_near(z * inner) : tanh(z * inner)); }
  vec slope(vec S) const {
    const vec t = S * inverse;
    return scale - scale * (t * t);
  }
};
template <class Use>
inline auto with_logits(LogitMap m, Use&& use) {
  return m.cap > 0.0f ? use(CappedLogits(m)) : use(PlainLogits(m));
}

// Row i of P from the n = i + 1 products z (in place); zeros behind them up to `padded`. Whole vectors of z are read
// and written: it has room for `padded` rounded up.
template <class Logits>
inline RowSoftmax softmax_row(float* z, Index n, Index padded, const Logits& form) {
  const Logits logits = form.of_row(z, n);
  vec most = logits(splat(z[0]));
  Index j = 0;
  for (; j + lanes <= n; j += lanes) most = max(logits(load(z + j)), most);
  if (j < n) most = max(first_lanes(logits(load(z + j)), n - j, most), most);
  const float top = max_lanes(most);
  vec sum{};
  for (j = 0; j + lanes <= n; j += lanes) {
    const vec e = exp(logits(load(z + j)) - splat(top));
    store(z + j, e);
    sum += e;
  }
  if (j < n) {
    const vec e = first_lanes(exp(logits(load(z + j)) - splat(top)), n - j);
    store(z + j, e);
    sum += e;
    j += lanes;
  }
  for (; j < padded; j += lanes) store(z + j, vec{});
  const float norm = 1.0f / sum_lanes(sum);
  for (j = 0; j < n; j += lanes) store(z + j, load(z + j) * splat(norm));
  return {top, norm};
}
inline RowSoftmax softmax_row(float* z, Index n, Index padded, LogitMap m) {
  return with_logits(m, [=](const auto& logits) { return softmax_row(z, n, padded, logits); });
}

}  // namespace qkgpt
