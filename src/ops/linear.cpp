// y = x W^T + b + r,  x (N, I), W (O, I), b (O), r (N, O) the residual stream
//   dx = dy W         dW = dy^T x         db = column sums of dy         dr = dy
// All three products run on the same micro-kernel; W is rearranged for it once per change of W.
#include "kernels/gemm.h"
#include "kernels/parallel.h"
#include "kernels/rows.h"
#include "ops/ops.h"

namespace qkgpt {
namespace {

// W^T (I, O), for the forward product.
Panels forward_panels(Param& w) {
  const Index out = w.shape[0], in = w.shape[1];
  if (!w.panels_valid) {  // where they are valid nothing is written: several threads may sample at once
    w.panels.resize(static_cast<std::size_t>(panel_floats(in, out)));
    pack_parallel(w.value(), 1, in, in, out, w.panels.data());
    w.panels_valid = true;
  }
  return {w.panels.data(), in, out};
}

// W (O, I), for dx.
Panels backward_panels(Param& w) {
  const Index out = w.shape[0], in = w.shape[1];
  w.panels_transposed.resize(static_cast<std::size_t>(panel_floats(out, in)));
  if (!w.panels_transposed_valid) pack_parallel(w.value(), in, 1, out, in, w.panels_transposed.data());
  w.panels_transposed_valid = true;
  return {w.panels_transposed.data(), out, in};
}

void bias_backward(Tape& tape, Param& b, const float* dy, Index rows) {
  const Index out = b.size(), n = shards(rows);
  float* partial = tape.borrow(n * out);
  parallel_for(n, 1 + 20000 / (shard_rows * out), [&](Index begin, Index end, int) {
    for (Index s = begin; s < end; ++s) {
      float* sum = partial + s * out;
      std::fill_n(sum, out, 0.0f);
      for (Index r = s * shard_rows; r < std::min((s + 1) * shard_rows, rows); ++r)
        for (Index o = 0; o < out; ++o) sum[o] += dy[r * out + o];
    }
  });
  const Grad db = tape.grad(b.var);
  add_shards(partial, n, out, db.add, db.data);
  tape.give_back(partial, n * out);
}

}  // namespace

Var& linear(Tape& tape, Var& x, Param& w, Param* b, Var* residual) {
  const Index out = w.shape[0], in = w.shape[1], rows = x.value.rows();
  check(x.value.columns() == in && (!b || b->size() == out), "linear: shapes do not fit");
  check(!residual || (!b && residual->value.rows() == rows && residual->value.columns() == out),
        "linear: a residual has the shape of the result and takes the place of the bias");
  const Shape& s = x.shape();
  Var& y = tape.make(s.rank() == 3 ? Shape{s[0], s[1], out} : Shape{rows, out});
  const Start start = residual ? Start{residual->value.data, out} : Start{b ? b->value() : nullptr, 0};
  gemm(rows, {x.value.data, in, 1}, forward_panels(w), start, y.value.data, out);

  tape.on_backward("linear", y, [&tape, &x, &w, b, residual, &y, rows, in, out] {
    const float* dy = y.grad;
    const Grad dx = tape.grad(x), dw = tape.grad(w.var);
    gemm(rows, {dy, out, 1}, backward_panels(w), {dx.add ? dx.data : nullptr, in}, dx.data, in);
    float* scratch = tape.borrow(weight_grad_scratch());
    weight_grad(rows, out, in, dy, x.value.data, dw.add, dw.data, scratch);
    tape.give_back(scratch, weight_grad_scratch());
    if (b) bias_backward(tape, *b, dy, rows);
    if (residual) tape.pass_on(y, *residual);
  });
  return y;
}

}  // namespace qkgpt
