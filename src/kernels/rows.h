// Sums over rows in a fixed order: 16 running sums, then a tree, whatever the width of a vector.
#pragma once
#include <algorithm>

#include "kernels/vmath.h"

namespace qkgpt {

// Sum of n terms; term(i, count) is the vector of terms i ... i + count - 1, zeros behind them.
template <class Term>
inline float row_sum(Index n, Term&& term) {
  constexpr Index vectors = 16 / lanes;
  vec sum[std::size_t{vectors}] = {};
  Index i = 0;
  for (; i + 16 <= n; i += 16)
#pragma GCC unroll 4
    for (Index v = 0; v < vectors; ++v) sum[v] += term(i + v * lanes, AllLanes{});
  for (Index v = 0; i < n; ++v, i += lanes) sum[v] += i + lanes <= n ? term(i, AllLanes{}) : term(i, n - i);
#pragma GCC unroll 4
  for (Index half = vectors / 2; half > 0; half /= 2)
    for (Index v = 0; v < half; ++v) sum[v] += sum[v + half];
  return sum_lanes(sum[0]);
}

// Rows per partial sum where a gradient adds up over all rows (biases, gains), and per block where rows are prepared
// for a product: a constant, so that the order of summation does not depend on the threads.
constexpr Index shard_rows = 48;
constexpr Index shards(Index rows) { return (rows + shard_rows - 1) / shard_rows; }

// out[c] (+)= sum over shards of partial[shard][c], in the order of the shards, in double. A shard's sums start
// `stride` floats after those of the one before.
inline void add_shards(const float* partial, Index shard_count, Index stride, Index columns, bool add, float* out) {
  for (Index c = 0; c < columns; ++c) {
    double sum = 0.0;
    for (Index s = 0; s < shard_count; ++s) sum += static_cast<double>(partial[s * stride + c]);
    out[c] = static_cast<float>(add ? static_cast<double>(out[c]) + sum : sum);
  }
}

}  // namespace qkgpt
