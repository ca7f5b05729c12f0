// n(x) g + s  with  n = (x - mean) r,  r = 1 / sqrt(var + eps),  var = mean of (x - mean)^2 over the row
// (Ba, Kiros, Hinton, arXiv 1607.06450; biased variance, eps as in GPT-2).
//
// Backward, with t = g dy: the row's mean and r depend on every x of the row, which takes two projections out
// of t, one on the constant row and one on n:
//   dx = r (t - mean(t) - n mean(t n))        dg = sum over rows of dy n        ds = sum over rows of dy
#include <cmath>

#include "ops/linear_of.h"

namespace qkgpt {
namespace {

constexpr float eps = 1e-5f;

struct LayerNormRows {
  Param *gain, *shift;  // shift may be null
  float *mean, *r;      // of every row, written by forward
  Index C;

  void normalise_row(const float* x, float m, float rs, float* y) const {
    const float *g = gain->value(), *s = shift ? shift->value() : nullptr;
    const vec mv = splat(m), rv = splat(rs);
    for_vectors(C, [&](Index c, auto n) {
      const vec normal = (load_part(x + c, n) - mv) * rv, gc = load_part(g + c, n);
      store_part(y + c, s ? normal * gc + load_part(s + c, n) : normal * gc, n);
    });
  }

  void forward(const float* x, Index first, Index last, float* y) const {
    const auto n = static_cast<float>(C);
    for (Index i = first; i < last; ++i, x += C, y += C) {
      const float m = row_sum(C, [x](Index c, auto count) { return load_part(x + c, count); }) / n;
      const float var = row_sum(C,
                                [x, m](Index c, auto count) {
                                  const vec d = first_lanes(load_part(x + c, count) - splat(m), count);
                                  return d * d;
                                }) /
                        n;
      mean[i] = m;
      r[i] = 1.0f / std::sqrt(var + eps);
      normalise_row(x, m, r[i], y);
    }
  }

  void backward(const float* x, const float* dy, Index first, Index last, Grad dx, float* y, float* sums) const {
    const float* g = gain->value();
    float *dg = sums, *ds = sums + C;
    std::fill_n(sums, sum_floats(), 0.0f);
    for (Index i = first; i < last; ++i, x += C, dy += C, y += C, dx.data += C) {
      const vec m = splat(mean[i]), rs = splat(r[i]);
      const auto t = [=](Index c, auto n) { return load_part(g + c, n) * load_part(dy + c, n); };
      const auto normal = [=](Index c, auto n) { return (load_part(x + c, n) - m) * rs; };
      const vec t_mean = splat(row_sum(C, t) / static_cast<float>(C));
      const vec tn_mean =
          splat(row_sum(C, [=](Index c, auto n) { return t(c, n) * normal(c, n); }) / static_cast<float>(C));
      for_vectors(C, [&](Index c, auto n) {
        const vec d = rs * (t(c, n) - t_mean - normal(c, n) * tn_mean);
        store_part(dx.data + c, dx.add ? load_part(dx.data + c, n) + d : d, n);
        store_part(dg + c, load_part(dg + c, n) + load_part(dy + c, n) * normal(c, n), n);
        if (shift) store_part(ds + c, load_part(ds + c, n) + load_part(dy + c, n), n);
      });
      normalise_row(x, mean[i], r[i], y);
    }
  }

  Index sum_floats() const { return shift ? 2 * C : C; }

  void finish(Tape& tape, const float* sums, Index n) const {
    const Grad dg = tape.grad(gain->var);
    add_shards(sums, n, sum_floats(), C, dg.add, dg.data);
    if (!shift) return;
    const Grad ds = tape.grad(shift->var);
    add_shards(sums + C, n, sum_floats(), C, ds.add, ds.data);
  }
};

}  // namespace

Var& layernorm_linear(Tape& tape, Var& x, Param& gain, Param* shift, Param& w, Param* b) {
  const Index C = x.value.columns(), rows = x.value.rows();
  check(gain.size() == C && (!shift || shift->size() == C), "layernorm: shapes do not fit");
  const LayerNormRows map{&gain, shift, tape.keep(rows), tape.keep(rows), C};
  return linear_of(tape, "layernorm_linear", x, map, w, b, nullptr);
}

}  // namespace qkgpt
