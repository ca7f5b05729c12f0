// Dropout masks: element e is kept when 32-bit draw e of the stream is at least p 2^32. One 64-bit output of
// the generator serves elements 2i (low half) and 2i + 1 (high half).
#pragma once
#include <algorithm>

#include "base/rng.h"

namespace qkgpt {

// mask[i] = 1 / (1 - p) or 0 for the elements first ... first + n - 1.
inline void dropout_mask(double p, std::uint64_t key, Index first, Index n, float* mask) {
  const auto threshold = static_cast<std::uint32_t>(p * 0x1p32);
  const float kept = static_cast<float>(1.0 / (1.0 - p));
  const auto value = [&](std::uint64_t draw) { return static_cast<std::uint32_t>(draw) < threshold ? 0.0f : kept; };
  const auto bits = [&](Index pair) { return mix64(key + (static_cast<std::uint64_t>(pair) + 1) * golden_gamma); };
  Index i = 0;
  if (first % 2 && n > 0) mask[i++] = value(bits(first / 2) >> 32);
  for (; i + 2 <= n; i += 2) {
    const std::uint64_t draw = bits((first + i) / 2);
    mask[i] = value(draw);
    mask[i + 1] = value(draw >> 32);
  }
  if (i < n) mask[i] = value(bits((first + i) / 2));
}

}  // namespace qkgpt
