// y = n g + b  with  n = (x - mean) r,  r = 1 / sqrt(var + eps),  var = mean of (x - mean)^2 over the row
// (Ba, Kiros, Hinton, arXiv 1607.06450; biased variance, eps as in GPT-2).
//
// Backward, with t = g dy: the row's mean and r depend on every x of the row, which takes two projections out
// of t, one on the constant row and one on n:
//   dx = r (t - mean(t) - n mean(t n))        dg = sum over rows of dy n        db = sum over rows of dy
#include <cmath>

#include "kernels/parallel.h"
#include "kernels/rows.h"
#include "ops/ops.h"

namespace qkgpt {
namespace {

constexpr float eps = 1e-5f;

void forward_row(const float* x, const float* g, const float* b, Index C, float* y, float* mean, float* r) {
  const auto n = static_cast<float>(C);
  const float m = row_sum(C, [x](Index c) { return x[c]; }) / n;
  const float var = row_sum(C, [x, m](Index c) { return (x[c] - m) * (x[c] - m); }) / n;
  const float rs = 1.0f / std::sqrt(var + eps);
  if (b)
    for (Index c = 0; c < C; ++c) y[c] = (x[c] - m) * rs * g[c] + b[c];
  else
    for (Index c = 0; c < C; ++c) y[c] = (x[c] - m) * rs * g[c];
  *mean = m;
  *r = rs;
}

void backward_row(const float* dy, const float* x, const float* g, float m, float r, Index C, float* dx, bool add,
                  float* dg, float* db) {
  const auto n = static_cast<float>(C);
  const float t_mean = row_sum(C, [=](Index c) { return g[c] * dy[c]; }) / n;
  const float tn_mean = row_sum(C, [=](Index c) { return g[c] * dy[c] * ((x[c] - m) * r); }) / n;
  for (Index c = 0; c < C; ++c) {
    const float normal = (x[c] - m) * r, d = r * (g[c] * dy[c] - t_mean - normal * tn_mean);
    dg[c] += dy[c] * normal;
    dx[c] = add ? dx[c] + d : d;
  }
  if (db)
    for (Index c = 0; c < C; ++c) db[c] += dy[c];
}

}  // namespace

Var& layernorm(Tape& tape, Var& x, Param& gain, Param* bias) {
  const Index C = x.value.columns(), rows = x.value.rows();
  check(gain.size() == C && (!bias || bias->size() == C), "layernorm: shapes do not fit");
  Var& y = tape.make(x.shape());
  float* mean = tape.keep(rows);
  float* r = tape.keep(rows);
  const Index grain = 1 + 10000 / C;
  parallel_for(rows, grain, [&](Index begin, Index end, int) {
    for (Index i = begin; i < end; ++i)
      forward_row(x.value.data + i * C, gain.value(), bias ? bias->value() : nullptr, C, y.value.data + i * C, mean + i,
                  r + i);
  });

  tape.on_backward("layernorm", y, [&tape, &x, &y, &gain, bias, mean, r, C, rows] {
    const Index n = shards(rows);
    float* partial = tape.borrow(2 * n * C);  // dg of every shard, then db
    const Grad dx = tape.grad(x);
    parallel_for(n, 1, [&](Index begin, Index end, int) {
      for (Index s = begin; s < end; ++s) {
        float *dg = partial + s * C, *db = bias ? partial + (n + s) * C : nullptr;
        std::fill_n(dg, C, 0.0f);
        if (db) std::fill_n(db, C, 0.0f);
        for (Index i = s * shard_rows; i < std::min((s + 1) * shard_rows, rows); ++i)
          backward_row(y.grad + i * C, x.value.data + i * C, gain.value(), mean[i], r[i], C, dx.data + i * C, dx.add,
                       dg, db);
      }
    });
    const Grad dg = tape.grad(gain.var);
    add_shards(partial, n, C, dg.add, dg.data);
    if (bias) {
      const Grad db = tape.grad(bias->var);
      add_shards(partial + n * C, n, C, db.add, db.data);
    }
    tape.give_back(partial, 2 * n * C);
  });
  return y;
}

}  // namespace qkgpt
