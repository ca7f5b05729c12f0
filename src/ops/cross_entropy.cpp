// loss = mean over rows of  log(sum_v exp(z_v)) - z_target
//   dz_v = (p_v - [v = target]) / N  with  p = softmax(z)
// The row maximum is taken out first, so that no exponential overflows. Maximum and log of the sum are kept
// apart for backward: their sum, rounded, would lose the digits of p where logits are large
// (pytorch/pytorch#11752). Row losses are added in order, in double.
#include <cmath>
#include <limits>

#include "kernels/parallel.h"
#include "kernels/vmath.h"
#include "ops/ops.h"

namespace qkgpt {
namespace {

// Sum of exp(z - shift) over a row, in a fixed order.
float exp_sum(const float* z, Index V, float shift) {
  vec sum{};
  Index v = 0;
  for (; v + lanes <= V; v += lanes) sum += exp(load(z + v) - splat(shift));
  float total = sum_lanes(sum);
  if (v < V) {
    float e[lanes];
    store(e, exp(load_part(z + v, V - v) - splat(shift)));
    for (Index i = 0; i < V - v; ++i) total += e[i];
  }
  return total;
}

// log p_v = (z_v - max) - log_sum
struct Normaliser {
  float max, log_sum;
};

Normaliser normaliser(const float* z, Index V) {
  float max = z[0];
  for (Index v = 1; v < V; ++v) max = z[v] > max ? z[v] : max;
  return {max, std::log(exp_sum(z, V, max))};
}

double log_p(float z, Normaliser n) {
  return static_cast<double>(z) - static_cast<double>(n.max) - static_cast<double>(n.log_sum);
}

void backward_row(const float* z, Normaliser n, std::int32_t target, float weight, Index V, float* dz, bool add) {
  const auto write = [&](Index v, float* to, vec p) {
    const Index count = std::min<Index>(lanes, V - v);
    if (add) p += load_part(to, count);
    store_part(to, p, count);
  };
  const float old = add ? dz[target] : 0.0f;
  for (Index v = 0; v < V; v += lanes) {
    const vec zv = v + lanes <= V ? load(z + v) : load_part(z + v, V - v);
    write(v, dz + v, exp(zv - splat(n.max) - splat(n.log_sum)) * splat(weight));
  }
  // p - 1 in one go: p near 1 must not lose its digits in two steps
  dz[target] = old + static_cast<float>(std::expm1(log_p(z[target], n))) * weight;
}

}  // namespace

Var& cross_entropy(Tape& tape, Var& logits, const std::int32_t* targets, double* row_losses) {
  const Index V = logits.value.columns(), rows = logits.value.rows();
  Var& loss = tape.make({1});
  auto* normalisers = reinterpret_cast<Normaliser*>(tape.keep(2 * rows));
  const float* z = logits.value.data;
  const Index grain = 1 + 5000 / V;
  parallel_for(rows, grain, [&](Index begin, Index end, int) {
    for (Index i = begin; i < end; ++i) normalisers[i] = normaliser(z + i * V, V);
  });
  double sum = 0.0;
  for (Index i = 0; i < rows; ++i) {
    const double row = -log_p(z[i * V + targets[i]], normalisers[i]);
    if (row_losses) row_losses[i] = row;
    sum += row;
  }
  loss.value.data[0] = static_cast<float>(sum / static_cast<double>(rows));

  tape.on_backward("cross_entropy", loss, [&tape, &logits, &loss, targets, normalisers, V, rows] {
    const Grad dz = tape.grad(logits);
    const float weight = loss.grad[0] / static_cast<float>(rows);
    parallel_for(rows, 1 + 5000 / V, [&](Index begin, Index end, int) {
      for (Index i = begin; i < end; ++i)
        backward_row(logits.value.data + i * V, normalisers[i], targets[i], weight, V, dz.data + i * V, dz.add);
    });
  });
  return loss;
}

}  // namespace qkgpt
