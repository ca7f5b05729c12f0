// The one place that knows the vector width. Vectors are the compilers' own extension: arithmetic operators
// work lane by lane, and the same source builds for AVX-512, AVX2, SSE2 and NEON.
#pragma once
#include <cstdint>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace qkgpt {

#if defined(__AVX512F__)
constexpr int lanes = 16;
constexpr const char* simd_name = "AVX-512";
constexpr int vector_registers = 32;
#elif defined(__AVX2__) && defined(__FMA__)
constexpr int lanes = 8;
constexpr const char* simd_name = "AVX2+FMA";
constexpr int vector_registers = 16;
#elif defined(__aarch64__)
constexpr int lanes = 4;
constexpr const char* simd_name = "NEON";
constexpr int vector_registers = 32;
#else
constexpr int lanes = 4;
constexpr const char* simd_name = "baseline";
constexpr int vector_registers = 16;
#endif

// aligned(4): rows of 65 floats start anywhere. may_alias: a vector may look at an array of float. Both stand
// before the equals sign: behind it, in a `using`, Clang ignores aligned without a word.
using vec [[gnu::aligned(4), gnu::may_alias]] = float __attribute__((vector_size(lanes * 4)));
using ivec [[gnu::aligned(4), gnu::may_alias]] = std::int32_t __attribute__((vector_size(lanes * 4)));
static_assert(alignof(vec) == 4 && alignof(ivec) == 4);

inline vec load(const float* p) { return *reinterpret_cast<const vec*>(p); }
inline void store(float* p, vec v) { *reinterpret_cast<vec*>(p) = v; }
inline vec splat(float s) { return s - vec{}; }  // minus, not plus: x - 0 is x for every x, so no add is left

// The first n lanes of p (0 < n <= lanes), zeros behind them; memory beyond n is not touched.
inline vec load_part(const float* p, Index n) {
  vec v{};
  std::memcpy(&v, p, static_cast<std::size_t>(n) * sizeof(float));
  return v;
}
inline void store_part(float* p, vec v, Index n) { std::memcpy(p, &v, static_cast<std::size_t>(n) * sizeof(float)); }

// The first n lanes of v (0 < n), `others` behind them; whatever v has there, a NaN too, is gone.
inline vec first_lanes(vec v, Index n, vec others = vec{}) {
  alignas(64) static constexpr std::int32_t numbers[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const ivec lane = *reinterpret_cast<const ivec*>(numbers);
  return lane < static_cast<std::int32_t>(n) ? v : others;
}

// Calls body(i, count) for the vectors of n numbers: `count` is `lanes`, known when compiling, but for the last one.
struct AllLanes {
  constexpr operator Index() const { return lanes; }
};
inline vec load_part(const float* p, AllLanes) { return load(p); }
inline void store_part(float* p, vec v, AllLanes) { store(p, v); }
inline vec first_lanes(vec v, AllLanes) { return v; }
template <class Body>
inline void for_vectors(Index n, Body&& body) {
  Index i = 0;
  for (; i + lanes <= n; i += lanes) body(i, AllLanes{});
  if (i < n) body(i, n - i);
}

namespace detail {
// Exchanges the two off-diagonal blocks of every 2s x 2s square: lanes with bit s set take from the other row.
template <int s, int... lane>
inline void exchange(vec& a, vec& b, std::integer_sequence<int, lane...>) {
  const vec low = __builtin_shufflevector(a, b, (lane & s ? lanes + lane - s : lane)...);
  b = __builtin_shufflevector(a, b, (lane & s ? lanes + lane : lane + s)...);
  a = low;
}
template <int s>
inline void transpose_from(vec* row) {
  if constexpr (s < lanes) {
#pragma GCC unroll 16
    for (int r = 0; r < lanes; ++r)
      if (!(r & s)) exchange<s>(row[r], row[r + s], std::make_integer_sequence<int, lanes>());
    transpose_from<2 * s>(row);
  }
}
}  // namespace detail

// Transposes a square of `lanes` rows.
inline void transpose(vec* row) { detail::transpose_from<1>(row); }

}  // namespace qkgpt
