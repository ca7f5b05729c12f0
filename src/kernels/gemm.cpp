#include "kernels/gemm.h"

#include <algorithm>
#include <array>
#include <utility>

#include "kernels/parallel.h"

namespace qkgpt {
namespace {

// Tile rows: accumulators + one vector per panel half + one broadcast fit the registers (32 or 16).
constexpr int tile_rows = lanes == 16 ? 12 : 6;
constexpr Index row_block = 16 * tile_rows;  // rows of A that stay in L2 while the panels pass by
constexpr Index depth_block = 256;           // a panel of this depth stays in L1
constexpr Index token_block = 256;           // the same for weight_grad

// C[R][V vectors] = start + sum over k of A[R][k] * panel[k][V vectors].
template <int R, int V>
[[gnu::noinline]] void tile(Index depth, const float* a, Index row_stride, Index k_stride, const float* panel,
                            const float* start, Index start_stride, float* c, Index c_stride) {
  vec acc[std::size_t{R}][std::size_t{V}];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) acc[r][v] = start ? load(start + r * start_stride + v * lanes) : vec{};
  for (Index k = 0; k < depth; ++k, a += k_stride, panel += V * lanes) {
    vec b[std::size_t{V}];
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) b[v] = load(panel + v * lanes);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const vec s = splat(a[r * row_stride]);
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) acc[r][v] = s * b[v] + acc[r][v];
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) store(c + r * c_stride + v * lanes, acc[r][v]);
}

using Tile = void (*)(Index, const float*, Index, Index, const float*, const float*, Index, float*, Index);

// tiles[V - 1][R - 1]: the same kernel for the last rows of a matrix.
template <int V, int... R>
constexpr auto tile_row(std::integer_sequence<int, R...>) {
  return std::array<Tile, sizeof...(R)>{tile<R + 1, V>...};
}
constexpr std::array tiles = {tile_row<1>(std::make_integer_sequence<int, tile_rows>()),
                              tile_row<2>(std::make_integer_sequence<int, tile_rows>())};

// One tile whose columns may reach beyond C: then it goes through a buffer.
void edge_tile(Tile kernel, Index rows, Index columns, Index depth, const float* a, Index row_stride, Index k_stride,
               const float* panel, Start start, float* c, Index c_stride) {
  float buffer[tile_rows * panel_width] = {};
  const auto width = static_cast<std::size_t>(columns) * sizeof(float);
  if (start.data)
    for (Index r = 0; r < rows; ++r) std::memcpy(buffer + r * panel_width, start.data + r * start.row_stride, width);
  kernel(depth, a, row_stride, k_stride, panel, start.data ? buffer : nullptr, panel_width, buffer, panel_width);
  for (Index r = 0; r < rows; ++r) std::memcpy(c + r * c_stride, buffer + r * panel_width, width);
}

// All tiles of one panel: columns [0, columns) of C, rows [0, rows).
void panel_product(Index rows, Index columns, Index depth, Operand a, const float* panel, int vectors, Start start,
                   float* c, Index c_stride) {
  const auto& kernels = tiles[static_cast<std::size_t>(vectors - 1)];
  for (Index i = 0; i < rows; i += tile_rows) {
    const Index r = std::min<Index>(tile_rows, rows - i);
    const Tile kernel = kernels[static_cast<std::size_t>(r - 1)];
    const float* ai = a.data + i * a.row_stride;
    const Start si = {start.data ? start.data + i * start.row_stride : nullptr, start.row_stride};
    float* ci = c + i * c_stride;
    if (columns == vectors * lanes)
      kernel(depth, ai, a.row_stride, a.k_stride, panel, si.data, si.row_stride, ci, c_stride);
    else
      edge_tile(kernel, r, columns, depth, ai, a.row_stride, a.k_stride, panel, si, ci, c_stride);
  }
}

// Vectors in the panel that starts at column n: the last panel may be half as wide.
int panel_vectors(Index columns, Index n) { return columns - n > lanes ? 2 : 1; }

}  // namespace

Index panel_floats(Index depth, Index columns) { return depth * ((columns + lanes - 1) / lanes) * lanes; }

Panels pack(const float* b, Index k_stride, Index column_stride, Index depth, Index columns, float* buffer) {
  for (Index n = 0; n < columns; n += panel_width) {
    const Index width = panel_vectors(columns, n) * lanes, used = std::min(width, columns - n);
    float* panel = buffer + n * depth;
    const float* from = b + n * column_stride;
    if (used < width) std::fill(panel, panel + depth * width, 0.0f);
    if (column_stride == 1 && used == panel_width) {
      for (Index k = 0; k < depth; ++k)
        std::memcpy(panel + k * panel_width, from + k * k_stride, panel_width * sizeof(float));
    } else {  // columns are rows in memory: read each of them once
      for (Index j = 0; j < used; ++j)
        for (Index k = 0; k < depth; ++k) panel[k * width + j] = from[k * k_stride + j * column_stride];
    }
  }
  return {buffer, depth, columns};
}

Panels pack_parallel(const float* b, Index k_stride, Index column_stride, Index depth, Index columns, float* buffer) {
  const Index panels = (columns + panel_width - 1) / panel_width;
  parallel_for(panels, 1 + 20000 / (depth * panel_width), [&](Index begin, Index end, int) {
    const Index first = begin * panel_width, last = std::min(end * panel_width, columns);
    pack(b + first * column_stride, k_stride, column_stride, depth, last - first, buffer + first * depth);
  });
  return {buffer, depth, columns};
}

void gemm_serial(Index rows, Index columns, Index k_begin, Index k_end, Operand a, Panels b, Start start, float* c,
                 Index c_stride) {
  for (Index i = 0; i < rows; i += row_block) {
    const Index r = std::min(row_block, rows - i);
    Start from = {start.data ? start.data + i * start.row_stride : nullptr, start.row_stride};
    for (Index k = k_begin; k < k_end || k == k_begin; k += depth_block) {
      const Index depth = std::min(depth_block, k_end - k);
      for (Index n = 0; n < columns; n += panel_width) {
        const int vectors = panel_vectors(b.columns, n);
        const float* panel = b.data + n * b.depth + k * vectors * lanes;
        const Start at = {from.data ? from.data + n : nullptr, from.row_stride};
        panel_product(r, std::min<Index>(vectors * lanes, columns - n), depth,
                      {a.data + i * a.row_stride + k * a.k_stride, a.row_stride, a.k_stride}, panel, vectors, at,
                      c + i * c_stride + n, c_stride);
      }
      from = {c + i * c_stride, c_stride};  // the chains go on from what is there
    }
  }
}

void gemm(Index rows, Operand a, Panels b, Start start, float* c, Index c_stride) {
  const Index strips = (rows + tile_rows - 1) / tile_rows;
  const Index work = std::max<Index>(2 * tile_rows * b.depth * b.columns, 1);
  parallel_for(strips, 1 + 500000 / work, [&](Index begin, Index end, int) {
    const Index first = begin * tile_rows, last = std::min(end * tile_rows, rows);
    gemm_serial(last - first, b.columns, 0, b.depth, {a.data + first * a.row_stride, a.row_stride, a.k_stride}, b,
                {start.data ? start.data + first * start.row_stride : nullptr, start.row_stride}, c + first * c_stride,
                c_stride);
  });
}

Index weight_grad_scratch() { return thread_count() * token_block * panel_width; }

void weight_grad(Index tokens, Index n, Index k, const float* dy, const float* x, bool add, float* dw, float* scratch) {
  // A unit is one panel of dW's columns and a quarter of its rows; neighbours share the packed panel of X.
  constexpr Index groups = 4;
  const Index panels = (k + panel_width - 1) / panel_width, strips = (n + tile_rows - 1) / tile_rows;
  const Index work = std::max<Index>(2 * tokens * n * panel_width / groups, 1);
  parallel_for(panels * groups, 1 + 500000 / work, [&](Index begin, Index end, int thread) {
    float* buffer = scratch + thread * token_block * panel_width;
    for (Index t = 0; t < tokens; t += token_block) {
      const Index depth = std::min(token_block, tokens - t);
      Index packed = -1;
      for (Index unit = begin; unit < end; ++unit) {
        const Index column = unit / groups * panel_width, width = std::min<Index>(panel_width, k - column);
        if (packed != column) pack(x + t * k + column, k, 1, depth, width, buffer), packed = column;
        const Index first = strips * (unit % groups) / groups * tile_rows;
        const Index last = std::min(strips * (unit % groups + 1) / groups * tile_rows, n);
        float* c = dw + first * k + column;
        panel_product(last - first, width, depth, {dy + t * n + first, 1, n}, buffer, panel_vectors(width, 0),
                      {t > 0 || add ? c : nullptr, k}, c, k);
      }
    }
  });
}

}  // namespace qkgpt
