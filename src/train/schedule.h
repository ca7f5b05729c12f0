// nanoGPT's learning rate for update i (0-based): linear warm-up, cosine down to min_lr, then flat.
#pragma once
#include <algorithm>
#include <cmath>
#include <numbers>

#include "config/config.h"

namespace qkgpt {

inline double learning_rate(const Config& c, Index i) {
  const double lr = c.learning_rate, low = min_lr(c);
  if (!c.decay_lr) return lr;
  const Index warmup = c.warmup_iters, end = lr_decay_iters(c);
  if (i < warmup) return lr * static_cast<double>(i + 1) / static_cast<double>(warmup + 1);
  if (i >= end) return low;
  const double ratio = static_cast<double>(i - warmup) / static_cast<double>(end - warmup);
  return low + 0.5 * (1.0 + std::cos(std::numbers::pi * ratio)) * (lr - low);
}

}  // namespace qkgpt
