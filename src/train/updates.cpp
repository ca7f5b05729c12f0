#include "train/updates.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <utility>

#include "base/text.h"
#include "ranks/ranks.h"
#include "train/adamw.h"
#include "train/schedule.h"

namespace qkgpt {
namespace {

using Clock = std::chrono::steady_clock;
const Whole nobody;

// Seconds since the last call, and a new start.
double lap(Clock::time_point& last) {
  const auto now = Clock::now();
  return std::max(0.0, std::chrono::duration<double>(now - std::exchange(last, now)).count());  // clocks have faults
}

std::string number(double x) {
  char digits[32];
  std::snprintf(digits, sizeof digits, "%.4g", std::isnan(x) ? std::abs(x) : x);
  return digits;
}

}  // namespace

std::string what_is_not_finite(const UpdateResult& r) {
  return cat(std::isfinite(r.loss) ? "the gradient" : "the loss", " is not finite (loss ", number(r.loss),
             ", gradient norm ", number(r.grad_norm), ", learning rate ", number(r.lr), ")");
}

Updates::Updates(Gpt& gpt, const Split& train, Arena& arena)
    : gpt_(gpt),
      train_(train),
      tape_(arena, true),
      shares_(gpt.config().gradient_accumulation_steps, ranks::rank(), ranks::count()),
      sum_(gpt.params(), shares_),
      whole_([this](const Param& first) { sum_.whole_from(first); }),
      inputs_(static_cast<std::size_t>(gpt.config().batch_size * gpt.config().block_size)),
      targets_(inputs_.size()),
      losses_(static_cast<std::size_t>(shares_.leaves * shares_.chain)),
      all_losses_(static_cast<std::size_t>(gpt.config().gradient_accumulation_steps)) {}

UpdateResult Updates::make(Index step) {
  const Config& c = gpt_.config();
  const Index T = c.block_size, micro_batches = c.gradient_accumulation_steps;
  const auto mine = static_cast<Index>(losses_.size());
  Phases seconds;
  auto last = Clock::now();
  for (Index i = 0; i < mine; ++i) {
    const Index micro = shares_.first + i;
    const bool starts_leaf = i % shares_.chain == 0, ends = i == mine - 1;
    if (starts_leaf && i > 0) sum_.keep_leaf();
    if (starts_leaf) gpt_.params().start_gradients();
    for (Index row = 0; row < c.batch_size; ++row)
      train_.read(train_window(c.seed, step, micro, row, train_.windows(T)), T, inputs_.data() + row * T,
                  targets_.data() + row * T);
    seconds.batch += lap(last);
    tape_.reset();
    Var& mean = gpt_.loss(tape_, inputs_.data(), targets_.data(), c.batch_size, T, {c.dropout, c.seed, step, micro},
                          nullptr, ends ? whole_ : nobody);
    losses_[static_cast<std::size_t>(i)] = static_cast<double>(mean.value.data[0]);
    seconds.forward += lap(last);
    tape_.backward(mean, 1.0f / static_cast<float>(micro_batches));
    seconds.backward += lap(last);
  }
  const ExchangeTimes exchange = sum_.finish();
  ranks::gather(losses_.data(), mine * static_cast<Index>(sizeof(double)), all_losses_.data());
  double loss = 0.0;
  for (const double l : all_losses_) loss += l / static_cast<double>(micro_batches);
  seconds.waited = lap(last);
  const double norm = gradient_norm(gpt_.params(), partial_norms_), lr = learning_rate(c, step);
  const bool finite = std::isfinite(loss) && std::isfinite(norm);
  if (finite) adamw(gpt_.params(), c, step, lr, clip_factor(norm, c.grad_clip));
  seconds.optimiser = lap(last);
  return {loss, lr, norm, finite, seconds, exchange.working};
}

}  // namespace qkgpt
