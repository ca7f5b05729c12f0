// Attention for the newest rows of sequences whose earlier keys and values are kept. The formulas are those of
// attention.cpp, and so are the functions behind them: every score and every element of y is one chain of products
// that does not depend on how many rows are computed together, and the softmax works row by row. So y has the bits
// that attention() gives.
#include <algorithm>

#include "kernels/gemm.h"
#include "kernels/parallel.h"
#include "ops/attention_task.h"
#include "ops/ops.h"

namespace qkgpt {
namespace {

constexpr Index query_block = 48;  // query rows worked on together

// One (sequence, head) on the calling thread.
struct CachedHead {
  const AttentionShape& a;
  const AttentionSpec& spec;
  const float* qkv;  // this sequence's first new row
  Index head, past, capacity;
  float *keys, *values;  // panels

  const float* row(Index i, Index part) const { return qkv + i * 3 * a.C + part * a.C + head * a.d; }

  // q^ (part 0) or k^ (part 1) of new row i. For rms_full every head measures the whole row anew: few rows are new.
  void normalise(Index i, Index part, float* to) const {
    const bool full = spec.norm == QkNorm::rms_full;
    const Index offset = full ? head * a.d : 0;
    const float* x = row(i, part);
    const RowStats stats = row_stats(spec.norm, x - offset, full ? a.C : a.d, static_cast<float>(spec.eps));
    const Param* gain = part ? spec.k_gain : spec.q_gain;
    row_forward(x, stats, gain ? gain->value() + offset : nullptr, a.d, to);
  }

  void append(float* key) const {
    for (Index i = 0; i < a.T; ++i) {
      normalise(i, 1, key);
      pack_column(key, past + i, a.d, capacity, keys);
      pack_row(row(i, 2), past + i, capacity, a.d, values);
    }
  }

  // y of the new rows [first, last). q: query_block d floats, scores: query_block `stride`.
  void attend(Index first, Index last, LogitMap logits, float* q, float* scores, Index stride, float* y) const {
    const Index rows = last - first, seen = past + last;
    for (Index i = first; i < last; ++i) normalise(i, 0, q + (i - first) * a.d);
    gemm_serial(rows, seen, 0, a.d, {q, a.d, 1}, {keys, a.d, capacity}, {}, scores, stride);
    for (Index i = first; i < last; ++i) softmax_row(scores + (i - first) * stride, past + i + 1, seen, logits);
    gemm_serial(rows, a.d, 0, seen, {scores, stride, 1}, {values, capacity, a.d}, {}, y, a.C);
  }
};

}  // namespace

Var& attention_cached(Tape& tape, Var& qkv, const AttentionSpec& spec, Index layer,
                      std::span<KeyValueCache* const> caches, Index queries) {
  const AttentionShape a(qkv.shape(), spec.n_head);
  check(!tape.recording() && queries <= a.T && a.B == static_cast<Index>(caches.size()),
        "attention_cached: one cache for each sequence, and no way back");
  const Index past = caches[0]->length(), capacity = caches[0]->capacity(), stride = rounded(past + a.T);
  for (const KeyValueCache* cache : caches)
    check(cache->length() == past && cache->capacity() == capacity && past + a.T <= capacity,
          "attention_cached: caches of different lengths, or full ones");
  Var& y = tape.make({a.B, queries, a.C});
  const LogitMap logits = logit_map(spec, a.d);
  const Index block = std::min(query_block, queries), scratch_size = rounded(block * a.d) + block * stride;
  float* scratch = tape.keep(thread_count() * scratch_size);
  const Index grain = 1 + 200000 / ((queries * (past + a.T) + 8 * a.T) * a.d);
  parallel_for(a.B * a.H, grain, [&](Index begin, Index end, int thread) {
    float* q = scratch + thread * scratch_size;
    for (Index t = begin; t < end; ++t) {
      const Index b = t / a.H, h = t % a.H;
      const CachedHead task = {.a = a,
                               .spec = spec,
                               .qkv = qkv.value.data + b * a.T * 3 * a.C,
                               .head = h,
                               .past = past,
                               .capacity = capacity,
                               .keys = caches[static_cast<std::size_t>(b)]->keys(layer, h),
                               .values = caches[static_cast<std::size_t>(b)]->values(layer, h)};
      task.append(q);
      for (Index first = a.T - queries; first < a.T; first += block)
        task.attend(first, std::min(first + block, a.T), logits, q, q + rounded(block * a.d), stride,
                    y.value.data + (b * queries + first - (a.T - queries)) * a.C + h * a.d);
    }
  });
  return y;
}

}  // namespace qkgpt
