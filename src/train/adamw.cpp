#include "train/adamw.h"

#include <cmath>

#include "kernels/parallel.h"

namespace qkgpt {
namespace {

double square_sum(const float* g, Index n) {
  double s[8] = {};
  Index i = 0;
  for (; i + 8 <= n; i += 8)
    for (Index l = 0; l < 8; ++l) s[l] += static_cast<double>(g[i + l]) * static_cast<double>(g[i + l]);
  for (Index l = 0; i < n; ++i, ++l) s[l] += static_cast<double>(g[i]) * static_cast<double>(g[i]);
  return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
}

struct Coefficients {
  float clip, beta1, beta2, shrink, step_size, root_scale;
};

void update(const Coefficients& k, const float* g, Index n, float* w, float* m, float* v) {
  for (Index i = 0; i < n; ++i) {
    const float gi = g[i] * k.clip;
    m[i] = k.beta1 * m[i] + (1.0f - k.beta1) * gi;
    v[i] = k.beta2 * v[i] + (1.0f - k.beta2) * (gi * gi);
    w[i] = k.shrink * w[i] - k.step_size * m[i] / (std::sqrt(v[i]) * k.root_scale + 1e-8f);
  }
}

}  // namespace

double gradient_norm(const Params& params, std::vector<double>& partial) {
  const std::vector<Chunk>& chunks = params.chunks();
  partial.resize(chunks.size());
  parallel_for(static_cast<Index>(chunks.size()), 8, [&](Index begin, Index end, int) {
    for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i)
      partial[i] = square_sum(chunks[i].param->var.grad + chunks[i].begin, chunks[i].count);
  });
  double sum = 0.0;
  for (const double s : partial) sum += s;
  return std::sqrt(sum);
}

void adamw(Params& params, const Config& config, Index step, double lr, double clip) {
  const auto t = static_cast<double>(step + 1);
  const double correction1 = 1.0 - std::pow(config.beta1, t), correction2 = 1.0 - std::pow(config.beta2, t);
  const auto coefficients = [&](const Param& p) {
    const double rate = lr * p.lr_mult;
    return Coefficients{
        .clip = static_cast<float>(clip),
        .beta1 = static_cast<float>(config.beta1),
        .beta2 = static_cast<float>(config.beta2),
        .shrink = static_cast<float>(p.decay ? 1.0 - rate * config.weight_decay : 1.0),
        .step_size = static_cast<float>(rate / correction1),
        .root_scale = static_cast<float>(1.0 / std::sqrt(correction2)),
    };
  };
  const std::vector<Chunk>& chunks = params.chunks();
  parallel_for(static_cast<Index>(chunks.size()), 8, [&](Index begin, Index end, int) {
    for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i) {
      Param& p = *chunks[i].param;
      const Index at = chunks[i].begin;
      update(coefficients(p), p.var.grad + at, chunks[i].count, p.value() + at, p.exp_avg + at, p.exp_avg_sq + at);
    }
  });
  for (Param& p : params.list()) p.changed();
}

}  // namespace qkgpt
