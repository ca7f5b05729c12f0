// Matrix products. One micro-kernel serves the three products of a linear layer and those of attention.
//
// Every element of C is one unbroken chain of fused multiply-adds over k = 0, 1, 2, ... that starts from the
// element of `start`, so its bits depend neither on tile or block sizes nor on the number of threads.
#pragma once
#include "kernels/simd.h"

namespace qkgpt {

// A (M, K) used in place: element (i, k) is data[i * row_stride + k * k_stride]; one of the strides is 1.
struct Operand {
  const float* data;
  Index row_stride, k_stride;
};

// B (K, N) rearranged for the micro-kernel: panels of `panel_width` columns, each [K][panel_width], padded
// with zeros. The last panel is half as wide where that is enough.
constexpr int panel_width = 2 * lanes;

struct Panels {
  const float* data;
  Index depth, columns;  // K, N
};

Index panel_floats(Index depth, Index columns);  // size of the buffer that pack() fills

// Packs B with element (k, n) at b[k * k_stride + n * column_stride].
Panels pack(const float* b, Index k_stride, Index column_stride, Index depth, Index columns, float* buffer);

// Panels that grow: writes row k of B (`columns` numbers side by side), or column n of it (`depth` numbers).
void pack_row(const float* row, Index k, Index depth, Index columns, float* buffer);
void pack_column(const float* column, Index n, Index depth, Index columns, float* buffer);

// The same as pack() by all threads.
Panels pack_parallel(const float* b, Index k_stride, Index column_stride, Index depth, Index columns, float* buffer);

// What the sums start from: zero, C itself (C += AB), a row (bias) or another matrix (residual).
struct Start {
  const float* data = nullptr;  // null: zero
  Index row_stride = 0;         // 0: the same row for all

  Start at_row(Index i) const { return {data ? data + i * row_stride : nullptr, row_stride}; }
};

// Rows of a tile: accumulators + one vector per panel half + broadcasts fit the registers. NEON multiplies by a number
// out of a register, so that numbers of A take registers too; of 12 rows GCC 12 spills four accumulators in the loop.
constexpr int tile_rows = vector_registers == 16 ? 6 : lanes == 16 ? 12 : 8;
constexpr Index row_step = 24;  // rows are divided among threads in multiples of this, whole tiles of every kind

// C (rows, N) = start + A (rows, K range) B, with k in [k_begin, k_end). On the calling thread.
// `columns` <= b.columns limits the columns that are computed.
void gemm_serial(Index rows, Index columns, Index k_begin, Index k_end, Operand a, Panels b, Start start, float* c,
                 Index c_stride);

// C (M, N) = start + A (M, K) B, rows divided among the threads.
void gemm(Index rows, Operand a, Panels b, Start start, float* c, Index c_stride);

// dW (N, K) = or += dY^T (N, tokens) X (tokens, K), tiles of dW divided among the threads.
// `scratch` holds weight_grad_scratch() floats.
Index weight_grad_scratch();
void weight_grad(Index tokens, Index n, Index k, const float* dy, const float* x, bool add, float* dw, float* scratch);

// While one lives, counts the multiply-adds of all products above, padding included: what they cost, whatever the
// machine is doing. One at a time; threads that count slow each other down a little.
class MultiplyAdds {
 public:
  MultiplyAdds();
  ~MultiplyAdds();
  MultiplyAdds(const MultiplyAdds&) = delete;
  MultiplyAdds& operator=(const MultiplyAdds&) = delete;
  Index counted() const;
};

}  // namespace qkgpt
