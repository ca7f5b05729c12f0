#include "kernels/peak.h"

#include <algorithm>
#include <chrono>

#include "kernels/parallel.h"
#include "kernels/simd.h"

namespace qkgpt {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point t) { return std::chrono::duration<double>(Clock::now() - t).count(); }

constexpr int chains = 12;  // two units times a latency of four or five need eight to ten

// x = x f + s for `chains` vectors; the result only keeps the loop from being left out.
[[gnu::noinline]] float multiply_add_loop(Index rounds, float factor, float summand) {
  vec x[std::size_t{chains}];
#pragma GCC unroll 12
  for (int i = 0; i < chains; ++i) x[i] = splat(static_cast<float>(i));
  const vec f = splat(factor), s = splat(summand);
  for (Index n = 0; n < rounds; ++n)
#pragma GCC unroll 12
    for (int i = 0; i < chains; ++i) x[i] = x[i] * f + s;
  vec sum{};
#pragma GCC unroll 12
  for (int i = 0; i < chains; ++i) sum += x[i];
  float out[lanes];
  store(out, sum);
  return out[0];
}

}  // namespace

double fma_burst() {
  constexpr Index rounds = 400000;
  std::vector<float> results(static_cast<std::size_t>(thread_count()) * 32);  // a cache line apart
  volatile float factor = 0.999f, summand = 0.001f;
  const auto begin = Clock::now();
  parallel_for(thread_count(), 1, [&](Index first, Index last, int) {
    for (Index t = first; t < last; ++t)
      results[static_cast<std::size_t>(t) * 32] = multiply_add_loop(rounds, factor, summand);
  });
  const double seconds = seconds_since(begin);
  return 2.0 * chains * lanes * static_cast<double>(rounds * thread_count()) / seconds / 1e9;
}

double triad_bandwidth(Index bytes) {
  const Index n = bytes / static_cast<Index>(3 * sizeof(float));
  std::vector<float> a(static_cast<std::size_t>(n)), b(a), c(a);
  double best = 0.0;
  for (int pass = 0; pass < 6; ++pass) {  // the first one warms up
    const auto begin = Clock::now();
    parallel_for(n, 4096, [&](Index first, Index last, int) {
      float* to = a.data();
      const float *from = b.data(), *scaled = c.data();
      for (Index i = first; i < last; ++i) to[i] = from[i] + 0.5f * scaled[i];
    });
    if (pass > 0) best = std::max(best, static_cast<double>(n) * 3.0 * sizeof(float) / seconds_since(begin) / 1e9);
  }
  return best;
}

}  // namespace qkgpt
