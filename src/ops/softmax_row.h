// Softmax of one row of scores: the same bits whether the row stands in a block of many or alone.
#pragma once
#include "kernels/vmath.h"

namespace qkgpt {

// P_ij = exp(S_ij - max) norm. The two are kept apart: their log-sum-exp, rounded, would lose the digits of P
// where scores are large (pytorch/pytorch#11752), and so P has the same bits on the way back.
struct RowSoftmax {
  float max, norm;
};

// Row i of P from the n = i + 1 scores z (in place); zeros behind them up to `padded`. S = scale z. Whole vectors of z
// are read and written: it has room for `padded` rounded up.
inline RowSoftmax softmax_row(float* z, Index n, Index padded, float scale) {
  const vec s = splat(scale);
  vec most = splat(z[0]) * s;
  Index j = 0;
  for (; j + lanes <= n; j += lanes) most = max(load(z + j) * s, most);
  if (j < n) most = max(first_lanes(load(z + j) * s, n - j, most), most);
  const float top = max_lanes(most);
  vec sum{};
  for (j = 0; j + lanes <= n; j += lanes) {
    const vec e = exp(load(z + j) * s - splat(top));
    store(z + j, e);
    sum += e;
  }
  if (j < n) {
    const vec e = first_lanes(exp(load(z + j) * s - splat(top)), n - j);
    store(z + j, e);
    sum += e;
    j += lanes;
  }
  for (; j < padded; j += lanes) store(z + j, vec{});
  const float norm = 1.0f / sum_lanes(sum);
  for (j = 0; j < n; j += lanes) store(z + j, load(z + j) * splat(norm));
  return {top, norm};
}

}  // namespace qkgpt
