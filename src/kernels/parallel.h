// Threads. A range is cut into contiguous pieces; since every output element has one owner and a fixed order of
// summation, where the cuts fall and which thread takes a piece never changes a bit.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>

#include "base/check.h"

#ifdef _OPENMP
#include <omp.h>
#endif
#ifdef __linux__
#include <sched.h>
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

// What is left of one thread's share. Its owner takes half of it at a time, from the front; threads that have finished
// their own help in the same way, so that none waits for one whose core is busy with something else.
struct alignas(128) Share {
  std::atomic<Index> next{0};
  Index end = 0;

  // The next items [begin, stop), at least `grain` of them; false when all are taken.
  bool take(Index grain, Index& begin, Index& stop) {
    begin = next.load(std::memory_order_relaxed);
    do {
      if (begin >= end) return false;
      const Index half = std::max(grain, (end - begin) / 2);
      stop = end - begin - half < grain ? end : begin + half;
    } while (!next.compare_exchange_weak(begin, stop, std::memory_order_relaxed));
    return true;
  }
};

// Calls body(begin, end, thread) for contiguous pieces that cover [0, n), none smaller than `grain` items unless n is.
// Tiny work stays on the calling thread.
template <class Body>
void parallel_for(Index n, Index grain, Body&& body) {
  constexpr Index most = 64;
  grain = std::max<Index>(grain, 1);
  const Index pieces = std::min({static_cast<Index>(thread_count()), n / grain, most});
  if (pieces <= 1) {
    if (n > 0) body(Index{0}, n, 0);
    return;
  }
#ifdef _OPENMP
  Share shares[most];
  for (Index t = 0; t < pieces; ++t) shares[t].next = n * t / pieces, shares[t].end = n * (t + 1) / pieces;
#pragma omp parallel num_threads(static_cast <int>(pieces))
  {
    const Index t = omp_get_thread_num();
    const Index least = std::max(grain, n / pieces / 8);
    for (Index i = 0, begin, end; i < pieces; ++i)
      while (shares[(t + i) % pieces].take(least, begin, end)) body(begin, end, static_cast<int>(t));
  }
#endif
}

// One thread for each core that the process may use: then each stays on its own, and the system never puts two of them
// on one core while another lies idle. With fewer threads it chooses their places, as it does where OpenMP was told to.
inline void place_thread([[maybe_unused]] int thread, [[maybe_unused]] int threads) {
#ifdef __linux__
  static const cpu_set_t allowed = [] {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0) CPU_ZERO(&set);
    return set;
  }();
  static const bool told =
      std::getenv("OMP_PROC_BIND") || std::getenv("OMP_PLACES") || std::getenv("GOMP_CPU_AFFINITY");
  if (told || CPU_COUNT(&allowed) < 2) return;
  cpu_set_t mine = allowed;
  if (threads == CPU_COUNT(&allowed)) {
    CPU_ZERO(&mine);
    for (std::size_t cpu = 0; cpu < CPU_SETSIZE; ++cpu)
      if (CPU_ISSET(cpu, &allowed) && thread-- == 0) CPU_SET(cpu, &mine);
  }
  sched_setaffinity(0, sizeof mine, &mine);  // where it is refused, the system's choice stays
#endif
}

// How many threads later regions use; every one of them flushes subnormals from now on.
inline void set_thread_count(int threads) {
#ifdef _OPENMP
  place_thread(0, 0);  // the calling thread first: new ones start where it may run
  omp_set_dynamic(0);
  omp_set_num_threads(threads);
#pragma omp parallel num_threads(threads)
  {
    flush_subnormals();
    place_thread(omp_get_thread_num(), threads);
  }
#else
  (void)threads;
  flush_subnormals();
#endif
}

}  // namespace qkgpt
