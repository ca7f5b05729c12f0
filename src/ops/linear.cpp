// y = x W^T + b + r,  x (N, I), W (O, I), b (O), r (N, O) the residual stream
//   dx = dy W         dW = dy^T x         db = column sums of dy         dr = dy
// All three products run on the same micro-kernel; W is rearranged for it once per change of W.
#include "ops/linear_of.h"

namespace qkgpt {

Panels forward_panels(Param& w) {
  const Index out = w.shape[0], in = w.shape[1];
  if (!w.panels_valid) {  // where they are valid nothing is written: several threads may sample at once
    w.panels.resize(static_cast<std::size_t>(panel_floats(in, out)));
    pack_parallel(w.value(), 1, in, in, out, w.panels.data());
    w.panels_valid = true;
  }
  return {w.panels.data(), in, out};
}

Panels backward_panels(Param& w) {
  const Index out = w.shape[0], in = w.shape[1];
  w.panels_transposed.resize(static_cast<std::size_t>(panel_floats(out, in)));
  if (!w.panels_transposed_valid) pack_parallel(w.value(), in, 1, out, in, w.panels_transposed.data());
  w.panels_transposed_valid = true;
  return {w.panels_transposed.data(), out, in};
}

void check_linear(const Tensor& x, const Param& w, const Param* b, const Var* residual) {
  check(x.columns() == w.shape[1] && (!b || b->size() == w.shape[0]), "linear: shapes do not fit");
  check(!residual || (!b && residual->value.rows() == x.rows() && residual->value.columns() == w.shape[0]),
        "linear: a residual has the shape of the result and takes the place of the bias");
}

Var& linear_result(Tape& tape, const Shape& x, Index out) {
  return tape.make(x.rank() == 3 ? Shape{x[0], x[1], out} : Shape{x.rows(), out});
}

Start linear_start(const Param* b, const Var* residual, Index out) {
  return residual ? Start{residual->value.data, out} : Start{b ? b->value() : nullptr, 0};
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
  add_shards(partial, n, out, out, db.add, db.data);
  tape.give_back(partial, n * out);
}

Var& linear(Tape& tape, Var& x, Param& w, Param* b, Var* residual) {
  check_linear(x.value, w, b, residual);
  const Index out = w.shape[0], in = w.shape[1], rows = x.value.rows();
  Var& y = linear_result(tape, x.shape(), out);
  gemm(rows, {x.value.data, in, 1}, forward_panels(w), linear_start(b, residual, out), y.value.data, out);

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
