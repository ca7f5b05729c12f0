#include "kernels/gemm.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <utility>

#include "kernels/parallel.h"

namespace qkgpt {
namespace {

constexpr int strip_vectors = (tile_rows + lanes - 1) / lanes;
constexpr Index row_block = 8 * tile_rows;  // rows of A that stay in L2 while the panels pass by
constexpr Index depth_block = 512;          // a panel of this depth is read from L1 by all strips of a block
// weight_grad packs X by blocks of tokens and groups of columns, dY by strips of tile_rows columns. Where dW has many
// rows, wide groups: dY is read anew for each of them.
constexpr Index token_block = 224;
constexpr Index most_strips = 144 / tile_rows;  // packed at a time, so that they stay in L2
constexpr Index widest_group = 384;
constexpr Index least_strips = 24 / tile_rows;  // worth packing a block of X for
constexpr Index column_group(Index n) { return n >= 384 ? widest_group : 128; }

// C[R][V vectors] = start + sum over k of A[R][k] * panel[k][V vectors]. A goes row by row (A[r][k] at
// a[r * stride + k]) or, for a transposed A, column by column (at a[r + k * stride]): with one of the strides known
// to be 1 an unrolled step needs hardly an instruction besides loads and multiply-adds. These fill the units also
// while another hardware thread shares the core's front end.
template <int R, int V, bool by_rows>
[[gnu::noinline]] void tile(Index depth, const float* a, Index stride, const float* panel, const float* start,
                            Index start_stride, float* c, Index c_stride) {
  vec acc[std::size_t{R}][std::size_t{V}];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) acc[r][v] = start ? load(start + r * start_stride + v * lanes) : vec{};
#pragma GCC unroll 4
  for (Index k = 0; k < depth; ++k, a += by_rows ? 1 : stride, panel += V * lanes) {
    vec b[std::size_t{V}];
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) b[v] = load(panel + v * lanes);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const vec s = splat(by_rows ? a[r * stride] : a[r]);
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) acc[r][v] = s * b[v] + acc[r][v];
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) store(c + r * c_stride + v * lanes, acc[r][v]);
}

using Tile = void (*)(Index, const float*, Index, const float*, const float*, Index, float*, Index);

// tiles[by_rows][V - 1][R - 1]: the same kernel for the last rows of a matrix.
template <bool by_rows, int V, int... R>
constexpr auto tile_row(std::integer_sequence<int, R...>) {
  return std::array<Tile, sizeof...(R)>{tile<R + 1, V, by_rows>...};
}
template <bool by_rows>
constexpr std::array tile_table = {tile_row<by_rows, 1>(std::make_integer_sequence<int, tile_rows>()),
                                   tile_row<by_rows, 2>(std::make_integer_sequence<int, tile_rows>())};
constexpr std::array tiles = {tile_table<false>, tile_table<true>};

// One tile whose columns may reach beyond C: then it goes through a buffer.
void edge_tile(Tile kernel, Index rows, Index columns, Index depth, const float* a, Index stride, const float* panel,
               Start start, float* c, Index c_stride) {
  float buffer[tile_rows * panel_width] = {};
  const auto width = static_cast<std::size_t>(columns) * sizeof(float);
  if (start.data)
    for (Index r = 0; r < rows; ++r) std::memcpy(buffer + r * panel_width, start.data + r * start.row_stride, width);
  kernel(depth, a, stride, panel, start.data ? buffer : nullptr, panel_width, buffer, panel_width);
  for (Index r = 0; r < rows; ++r) std::memcpy(c + r * c_stride, buffer + r * panel_width, width);
}

std::atomic<bool> counting = false;
std::atomic<Index> multiply_adds = 0;

// The next tile's rows of C are on their way while this one is worked on.
void prefetch_rows(const float* c, Index rows, Index stride) {
  for (Index r = 0; r < std::min<Index>(tile_rows, rows); ++r) __builtin_prefetch(c + r * stride, 1);
}

// All tiles of one panel: columns [0, columns) of C, rows [0, rows).
void panel_product(Index rows, Index columns, Index depth, Operand a, const float* panel, int vectors, Start start,
                   float* c, Index c_stride) {
  if (counting.load(std::memory_order_relaxed)) multiply_adds += rows * vectors * lanes * depth;
  const bool by_rows = a.k_stride == 1;
  const Index stride = by_rows ? a.row_stride : a.k_stride;
  const auto& kernels = tiles[by_rows][static_cast<std::size_t>(vectors - 1)];
  for (Index i = 0; i < rows; i += tile_rows) {
    const Index r = std::min<Index>(tile_rows, rows - i);
    const Tile kernel = kernels[static_cast<std::size_t>(r - 1)];
    const float* ai = a.data + i * a.row_stride;
    const Start si = {start.data ? start.data + i * start.row_stride : nullptr, start.row_stride};
    float* ci = c + i * c_stride;
    prefetch_rows(c + (i + tile_rows) * c_stride, rows - i - tile_rows, c_stride);
    if (columns == vectors * lanes)
      kernel(depth, ai, stride, panel, si.data, si.row_stride, ci, c_stride);
    else
      edge_tile(kernel, r, columns, depth, ai, stride, panel, si, ci, c_stride);
  }
}

// Vectors in the panel that starts at column n: the last panel may be half as wide.
int panel_vectors(Index columns, Index n) { return columns - n > lanes ? 2 : 1; }

// `lanes` rows of `depth` numbers become columns of a panel.
void pack_rows(const float* from, Index stride, Index depth, Index width, float* panel) {
  Index k = 0;
  for (; k + lanes <= depth; k += lanes) {
    vec row[lanes];
#pragma GCC unroll 16
    for (int r = 0; r < lanes; ++r) row[r] = load(from + r * stride + k);
    transpose(row);
#pragma GCC unroll 16
    for (int r = 0; r < lanes; ++r) store(panel + (k + r) * width, row[r]);
  }
  for (; k < depth; ++k)
    for (Index r = 0; r < lanes; ++r) panel[k * width + r] = from[r * stride + k];
}

// Floats from one packed strip of dY to the next; the line of cache between them keeps strips out of each other's sets.
constexpr Index strip_stride = token_block * tile_rows + 16;

// dY's columns [first, last) of `depth` tokens as strips of tile_rows columns, [depth][tile_rows] each. In place a
// strip would take a line of cache for every token and, where N is a power of two, all of them from a few sets.
void pack_strips(const float* dy, Index n, Index first, Index last, Index depth, float* strips) {
  const Index room = n - first - strip_vectors * lanes;
  const Index whole = room < 0 ? 0 : std::min((last - first) / tile_rows, room / tile_rows + 1);
  for (Index t = 0; t < depth; ++t, dy += n, strips += tile_rows) {
    Index s = 0;
#pragma GCC unroll 4
    for (; s < whole; ++s)  // whole vectors: what is too much is overwritten by the next token's
#pragma GCC unroll 2
      for (Index v = 0; v < strip_vectors; ++v)
        store(strips + s * strip_stride + v * lanes, load(dy + first + s * tile_rows + v * lanes));
    for (Index i = first + s * tile_rows; i < last; i += tile_rows, ++s)
      std::memcpy(strips + s * strip_stride, dy + i,
                  static_cast<std::size_t>(std::min<Index>(tile_rows, last - i)) * sizeof(float));
  }
}

// C (rows, columns) = or += A B from A's packed strips and B's panels.
void strips_product(Index rows, Index columns, Index depth, const float* strips, const float* panels, bool add,
                    float* c, Index c_stride) {
  for (Index j = 0; j < columns; j += panel_width) {
    const int vectors = panel_vectors(columns, j);
    for (Index i = 0; i < rows; i += tile_rows) {
      float* tile_c = c + i * c_stride + j;
      prefetch_rows(tile_c + tile_rows * c_stride, rows - i - tile_rows, c_stride);
      panel_product(std::min<Index>(tile_rows, rows - i), std::min<Index>(vectors * lanes, columns - j), depth,
                    {strips + i / tile_rows * strip_stride, 1, tile_rows}, panels + j * depth, vectors,
                    {add ? tile_c : nullptr, c_stride}, tile_c, c_stride);
    }
  }
}

constexpr Index thread_scratch = token_block * widest_group + most_strips * strip_stride;

}  // namespace

MultiplyAdds::MultiplyAdds() {
  multiply_adds = 0;
  counting = true;
}
MultiplyAdds::~MultiplyAdds() { counting = false; }
Index MultiplyAdds::counted() const { return multiply_adds; }

Index panel_floats(Index depth, Index columns) { return depth * ((columns + lanes - 1) / lanes) * lanes; }

// Rows of B as they stand, a few at a time: what a cache line of B holds goes to several panels.
void pack_in_order(const float* b, Index k_stride, Index depth, Index panels, float* buffer) {
  constexpr Index together = 8;
  for (Index k = 0; k < depth; k += together)
    for (Index p = 0; p < panels; ++p) {
      const float* from = b + p * panel_width;
      float* panel = buffer + p * panel_width * depth;
      for (Index i = k; i < std::min(k + together, depth); ++i)
        std::memcpy(panel + i * panel_width, from + i * k_stride, panel_width * sizeof(float));
    }
}

Panels pack(const float* b, Index k_stride, Index column_stride, Index depth, Index columns, float* buffer) {
  const Index in_order = column_stride == 1 ? columns / panel_width : 0;
  if (in_order > 0) pack_in_order(b, k_stride, depth, in_order, buffer);
  for (Index n = in_order * panel_width; n < columns; n += panel_width) {
    const Index width = panel_vectors(columns, n) * lanes, used = std::min(width, columns - n);
    float* panel = buffer + n * depth;
    const float* from = b + n * column_stride;
    if (used < width) std::fill(panel, panel + depth * width, 0.0f);
    Index j = 0;
    for (; k_stride == 1 && j + lanes <= used; j += lanes)  // columns of B are rows in memory
      pack_rows(from + j * column_stride, column_stride, depth, width, panel + j);
    for (; j < used; ++j)
      for (Index k = 0; k < depth; ++k) panel[k * width + j] = from[k * k_stride + j * column_stride];
  }
  return {buffer, depth, columns};
}

void pack_row(const float* row, Index k, Index depth, Index columns, float* buffer) {
  for (Index n = 0; n < columns; n += panel_width) {
    const Index width = panel_vectors(columns, n) * lanes, used = std::min(width, columns - n);
    std::memcpy(buffer + n * depth + k * width, row + n, static_cast<std::size_t>(used) * sizeof(float));
  }
}

void pack_column(const float* column, Index n, Index depth, Index columns, float* buffer) {
  const Index first = n / panel_width * panel_width, width = panel_vectors(columns, first) * lanes;
  float* to = buffer + first * depth + n - first;
  for (Index k = 0; k < depth; ++k) to[k * width] = column[k];
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

Index weight_grad_scratch() { return thread_count() * thread_scratch; }

void weight_grad(Index tokens, Index n, Index k, const float* dy, const float* x, bool add, float* dw, float* scratch) {
  // A unit is a strip of dW's rows in one group of its columns; the packed panels of X serve all strips of a group.
  const Index group = column_group(n), groups = (k + group - 1) / group, strips = (n + tile_rows - 1) / tile_rows;
  // Whoever takes a few strips packs all of X for them: a thread takes its whole share at once.
  const Index work = std::max<Index>(2 * tokens * tile_rows * std::min(k, group), 1);
  const Index grain = std::max<Index>({1 + 500000 / work, least_strips, groups * strips / thread_count()});
  parallel_for(groups * strips, grain, [&](Index begin, Index end, int thread) {
    float* panels = scratch + thread * thread_scratch;
    float* rows = panels + token_block * widest_group;
    for (Index t = 0; t < tokens; t += token_block) {
      const Index depth = std::min(token_block, tokens - t);
      Index packed = -1;
      for (Index unit = begin, count; unit < end; unit += count) {
        const Index column = unit / strips * group, columns = std::min(group, k - column), strip = unit % strips;
        count = std::min({most_strips, strips - strip, end - unit});
        const Index first = strip * tile_rows, last = std::min(first + count * tile_rows, n);
        if (std::exchange(packed, column) != column) pack(x + t * k + column, k, 1, depth, columns, panels);
        pack_strips(dy + t * n, n, first, last, depth, rows);
        strips_product(last - first, columns, depth, rows, panels, t > 0 || add, dw + first * k + column, k);
      }
    }
  });
}

}  // namespace qkgpt
