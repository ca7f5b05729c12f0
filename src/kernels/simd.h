// The one place that knows the vector width. Vectors are the compilers' own extension: arithmetic operators
// work lane by lane, and the same source builds for AVX-512, AVX2, SSE2 and NEON.
#pragma once
#include <cstdint>
#include <cstring>

#include "base/check.h"

namespace qkgpt {

#if defined(__AVX512F__)
constexpr int lanes = 16;
constexpr const char* simd_name = "AVX-512";
#elif defined(__AVX2__) && defined(__FMA__)
constexpr int lanes = 8;
constexpr const char* simd_name = "AVX2+FMA";
#elif defined(__aarch64__)
constexpr int lanes = 4;
constexpr const char* simd_name = "NEON";
#else
constexpr int lanes = 4;
constexpr const char* simd_name = "baseline";
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

}  // namespace qkgpt
