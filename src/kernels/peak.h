// What this machine can do: the limits that `qkgpt bench` holds the kernels against.
#pragma once
#include <vector>

#include "base/check.h"

namespace qkgpt {

// GFLOP/s of all threads in one burst of about a millisecond of fused multiply-adds on registers alone. Take many
// bursts: the best one is the peak, their spread says how quiet the machine is.
double fma_burst();

// GB/s of a[i] = b[i] + s c[i] over `bytes` bytes in all, best of five passes: two streams read, one written.
double triad_bandwidth(Index bytes);

}  // namespace qkgpt
