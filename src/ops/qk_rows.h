// Normalising a row x of q or k (m numbers: one head's d channels, or all C for rms_full).
//
// Every kind has the form  y = (x - mu) r,  out = gain * y:
//   none       mu = 0        r = 1
//   l2         mu = 0        r = 1 / max(|x|, eps)                 Henry et al., arXiv 2010.04245
//   rms        mu = 0        r = 1 / sqrt(mean(x^2) + eps)         Qwen3, dots.llm1; rms_full: OLMoE, OLMo 2
//   layernorm  mu = mean(x)  r = 1 / sqrt(mean((x - mu)^2) + eps)  ViT-22B
//
// Backward, with t = gain * dout. r (and mu) depend on every x of the row, which projects t off y (and off the
// constant row):
//   dx = r (t - alpha - beta y)        dgain = sum over rows of dout * y
//   l2         alpha = 0        beta = sum(t y), or 0 below the clamp, where y = x / eps is linear
//   rms        alpha = 0        beta = sum(t y) / m
//   layernorm  alpha = mean(t)  beta = sum(t y) / m
#pragma once
#include <cmath>

#include "base/attention_kind.h"
#include "kernels/rows.h"
#include "kernels/simd.h"

namespace qkgpt {

struct RowStats {
  float mu, r;
};

// sum of (x - mu)^2
inline float square_sum(const float* x, Index m, float mu) {
  return row_sum(m, [=](Index c, auto count) {
    const vec d = first_lanes(load_part(x + c, count) - splat(mu), count);
    return d * d;
  });
}

inline RowStats row_stats(QkNorm norm, const float* x, Index m, float eps) {
  const auto n = static_cast<float>(m);
  switch (norm) {
    case QkNorm::none: return {0.0f, 1.0f};
    case QkNorm::l2: {
      const float length = std::sqrt(square_sum(x, m, 0.0f));
      return {0.0f, 1.0f / std::max(length, eps)};  // length first: a NaN stays a NaN
    }
    case QkNorm::rms:
    case QkNorm::rms_full: {
      return {0.0f, 1.0f / std::sqrt(square_sum(x, m, 0.0f) / n + eps)};
    }
    case QkNorm::layernorm: {
      const float mu = row_sum(m, [x](Index c, auto count) { return load_part(x + c, count); }) / n;
      return {mu, 1.0f / std::sqrt(square_sum(x, m, mu) / n + eps)};
    }
  }
  return {};
}

// to = gain (x - mu) r over the n channels at hand. gain null: ones.
inline void row_forward(const float* x, RowStats s, const float* gain, Index n, float* to) {
  const vec mu = splat(s.mu), r = splat(s.r);
  for_vectors(n, [&](Index c, auto count) {
    const vec y = (load_part(x + c, count) - mu) * r;
    store_part(to + c, gain ? y * load_part(gain + c, count) : y, count);
  });
}

// Turns dout, in place, into dx; adds to dgain (m) where it is not null. gain null: ones.
inline void row_backward(QkNorm norm, const float* x, RowStats s, Index m, float eps, const float* gain, float* dout,
                         float* dgain) {
  if (norm == QkNorm::none) return;
  const auto n = static_cast<float>(m);
  const auto t = [=](Index c, auto count) { return load_part(dout + c, count); };
  const auto y = [=](Index c, auto count) { return (load_part(x + c, count) - splat(s.mu)) * splat(s.r); };
  const float ty = row_sum(m, [=](Index c, auto count) {
    vec d = t(c, count);
    const vec yc = y(c, count);
    if (dgain) store_part(dgain + c, load_part(dgain + c, count) + d * yc, count);
    if (gain) {  // from here on dout is t
      d *= load_part(gain + c, count);
      store_part(dout + c, d, count);
    }
    return d * yc;
  });
  float alpha = 0.0f, beta = ty / n;
  if (norm == QkNorm::l2) beta = s.r < 1.0f / eps ? ty : 0.0f;
  if (norm == QkNorm::layernorm) alpha = row_sum(m, t) / n;
  for_vectors(m, [&](Index c, auto count) {
    store_part(dout + c, splat(s.r) * (t(c, count) - splat(alpha) - splat(beta) * y(c, count)), count);
  });
}

}  // namespace qkgpt
