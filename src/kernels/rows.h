// Sums over a row in a fixed order: 16 running sums, then a tree. Compilers turn the inner loop into vectors.
#pragma once
#include "base/check.h"

namespace qkgpt {

// Sum of term(0) ... term(n - 1).
template <class Term>
inline float row_sum(Index n, Term&& term) {
  float s[16] = {};
  Index i = 0;
  for (; i + 16 <= n; i += 16)
    for (Index l = 0; l < 16; ++l) s[l] += term(i + l);
  for (Index l = 0; i < n; ++i, ++l) s[l] += term(i);
  for (Index half = 8; half > 0; half /= 2)
    for (Index l = 0; l < half; ++l) s[l] += s[l + half];
  return s[0];
}

// Rows per partial sum where a gradient adds up over all rows (biases, gains): a constant, so that the order
// of summation does not depend on the threads.
constexpr Index shard_rows = 64;
constexpr Index shards(Index rows) { return (rows + shard_rows - 1) / shard_rows; }

// out[c] (+)= sum over shards of partial[shard][c], in the order of the shards, in double.
inline void add_shards(const float* partial, Index shard_count, Index columns, bool add, float* out) {
  for (Index c = 0; c < columns; ++c) {
    double sum = 0.0;
    for (Index s = 0; s < shard_count; ++s) sum += static_cast<double>(partial[s * columns + c]);
    out[c] = static_cast<float>(add ? static_cast<double>(out[c]) + sum : sum);
  }
}

}  // namespace qkgpt
