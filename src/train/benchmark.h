// `qkgpt bench`: the training step of a config against what the machine can do.
#pragma once
#include <string>
#include <vector>

#include "autograd/tape.h"
#include "model/gpt.h"
#include "train/corpus.h"

namespace qkgpt {

// GFLOP/s of the three products of a linear layer, x (rows, in) and W (out, in).
struct ProductRates {
  std::string name;
  Index rows, out, in;
  double forward, dx, dw;
};

struct Benchmark {
  double peak, peak_median;  // GFLOP/s of fused multiply-adds: the best and the median burst of the whole measurement
  double bandwidth;          // GB/s
  std::vector<ProductRates> products;

  // Milliseconds per update. The first updates warm up and are left out.
  Index updates_measured;
  double ms_median, ms_low, ms_high, ms_best;              // low, high: quartiles
  double ms_batch, ms_forward, ms_backward, ms_optimiser;  // medians
  double ms_exchange, ms_waited;                           // gradients between ranks, and what of it was waited for
  std::vector<OpTime> ops;                                 // milliseconds per update, medians

  double tokens_per_second, gflops;          // of all ranks, as nanoGPT counts; both of the median
  double fraction, fraction_of_median_peak;  // gflops as a share of the peak of as many such ranks
  double executed_gflop;                     // done by the matrix kernels in one update, padding included
  Index gradient_bytes;
  Index arena_bytes, state_bytes;  // activations and work space; parameters, gradients, moments and their copies
  double resident_bytes;           // most that the process ever held, 0 where the system does not tell

  double loss;        // of the last update
  std::uint32_t crc;  // of all weights after it
};

// Updates that `qkgpt bench` makes without --steps: a function of the config alone.
Index benchmark_steps(const Config& config, Index params_without_positions);

// Together. Measures with the threads that are set; all but the rate is of this rank. `progress` hears what is going on
// and how much of it is done (0 to 1).
Benchmark benchmark(Gpt& gpt, const Split& train, Index steps,
                    const std::function<void(const char* what, double done)>& progress);

}  // namespace qkgpt
