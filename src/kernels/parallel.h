// Threads. A range is cut into one contiguous piece per thread; since every output element has one owner and
// a fixed order of summation, where the cuts fall never changes a bit.
#pragma once
#include <algorithm>
#include <cstdint>

#include "base/check.h"

#ifdef _OPENMP
#include <omp.h>
#endif
#if defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace qkgpt {

#ifdef _OPENMP
constexpr bool has_openmp = true;
inline int thread_count() { return omp_get_max_threads(); }
#else
constexpr bool has_openmp = false;
inline int thread_count() { return 1; }
#endif

// Subnormal numbers become zero in the calling thread: Adam's moments decay into them and slow the units down.
inline void flush_subnormals() {
#if defined(__SSE__)
  _mm_setcsr(_mm_getcsr() | 0x8040u);
#elif defined(__aarch64__)
  std::uint64_t fpcr;
  asm volatile("mrs %0, fpcr" : "=r"(fpcr));
  asm volatile("msr fpcr, %0" ::"r"(fpcr | (std::uint64_t{1} << 24)));
#endif
}

// Calls body(begin, end, thread) for contiguous pieces that cover [0, n); at most one piece per thread, and
// none smaller than `grain` items unless n is. Tiny work stays on the calling thread.
template <class Body>
void parallel_for(Index n, Index grain, Body&& body) {
  const Index pieces = std::min<Index>(thread_count(), n / std::max<Index>(grain, 1));
  if (pieces <= 1) {
    if (n > 0) body(Index{0}, n, 0);
    return;
  }
#ifdef _OPENMP
#pragma omp parallel num_threads(static_cast <int>(pieces))
  {
    const Index t = omp_get_thread_num(), p = omp_get_num_threads();
    body(n * t / p, n * (t + 1) / p, static_cast<int>(t));
  }
#endif
}

// How many threads later regions use; every one of them flushes subnormals from now on.
inline void set_thread_count(int threads) {
#ifdef _OPENMP
  omp_set_dynamic(0);
  omp_set_num_threads(threads);
#pragma omp parallel num_threads(threads)
  flush_subnormals();
#else
  (void)threads;
  flush_subnormals();
#endif
}

}  // namespace qkgpt
