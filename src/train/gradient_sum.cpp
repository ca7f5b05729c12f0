#include "train/gradient_sum.h"

#include <algorithm>
#include <bit>

#include "base/text.h"
#include "kernels/parallel.h"
#include "ranks/ranks.h"

namespace qkgpt {
namespace {

Index leaves_of(Index micro_batches) { return micro_batches & -micro_batches; }  // the largest power of two in it

}  // namespace

Shares::Shares(Index micro_batches, int rank, int ranks)
    : leaves(leaves_of(micro_batches) / ranks), chain(micro_batches / leaves_of(micro_batches)) {
  first = rank * leaves * chain;
}

void require_shares(Index micro_batches, int ranks) {
  const Index n = ranks, most = leaves_of(micro_batches);
  const auto power = [](Index x) { return std::has_single_bit(static_cast<std::uint64_t>(x)); };
  if (power(n) && n <= most) return;
  std::string good;  // numbers of ranks, and of micro-batches for so many ranks
  const auto add = [&good](Index x) { good += cat(good.empty() ? "" : " or ", x); };
  add(std::min(most, static_cast<Index>(std::bit_floor(static_cast<std::uint64_t>(n)))));
  if (const auto above = static_cast<Index>(std::bit_ceil(static_cast<std::uint64_t>(n))); above <= most) add(above);
  std::string message =
      cat("ranks: ", n, " cannot share ", micro_batches, micro_batches == 1 ? " micro-batch" : " micro-batches",
          " (gradient_accumulation_steps) evenly; ", good, " can");
  if (power(n)) {
    good.clear();
    if (micro_batches > n) add(micro_batches / n * n);
    add(micro_batches / n * n + n);
    message += cat(", or ", good, " micro-batches");
  }
  throw Error(ErrorKind::usage, message);
}

GradientSum::GradientSum(Params& params, const Shares& shares)
    : params_(params), whole_(static_cast<Index>(params.gradients().size())), exchange_(params.gradients()) {
  const auto bytes = static_cast<Index>(params.gradients().size_bytes());
  check(bytes > 0, "the parameters have memory for gradients before these are summed");
  for (Index leaves = shares.leaves; leaves > 1; leaves /= 2) waiting_.emplace_back(bytes);
}

void GradientSum::add_waiting(std::size_t level, Index begin, Index end) {
  float* sum = params_.gradients().data();
  const float* left = waiting(level);
  parallel_for(end - begin, 65536, [=](Index from, Index to, int) {
    for (Index i = begin + from; i < begin + to; ++i) sum[i] = left[i] + sum[i];
  });
}

void GradientSum::keep_leaf() {
  std::size_t level = 0;
  const std::span<float> gradients = params_.gradients();
  const auto n = static_cast<Index>(gradients.size());
  for (; leaf_ >> level & 1; ++level) add_waiting(level, 0, n);
  float* to = waiting(level);
  parallel_for(n, 65536, [=](Index from, Index until, int) {
    std::copy(gradients.data() + from, gradients.data() + until, to + from);
  });
  ++leaf_;
}

void GradientSum::whole_from(const Param& first) {
  const Index begin = first.var.grad - params_.gradients().data();
  for (std::size_t level = 0; level < waiting_.size(); ++level) add_waiting(level, begin, whole_);
  exchange_.post(begin, whole_);
  whole_ = begin;
}

ExchangeTimes GradientSum::finish() {
  check(whole_ == 0, "every gradient is told to be whole");
  leaf_ = 0;
  whole_ = static_cast<Index>(params_.gradients().size());
  return exchange_.finish();
}

}  // namespace qkgpt
