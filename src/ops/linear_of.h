// Linear layers on rows f(x) that are made where the product needs them: a block of rows is prepared in the cache of
// the thread that multiplies it and never stored, and backward makes it again from x.
#pragma once
#include "kernels/gemm.h"
#include "kernels/parallel.h"
#include "kernels/rows.h"
#include "ops/ops.h"

namespace qkgpt {

Panels forward_panels(Param& w);   // W^T (I, O), for the forward product
Panels backward_panels(Param& w);  // W (O, I), for the gradient of its input
void check_linear(const Tensor& x, const Param& w, const Param* b, const Var* residual);
Var& linear_result(Tape& tape, const Shape& x, Index out);
Start linear_start(const Param* b, const Var* residual, Index out);
void bias_backward(Tape& tape, Param& b, const float* dy, Index rows);

// y = f(x) W^T + b + r. `Map` is f, on rows of I numbers:
//   forward(x, first, last, to)              to = f(x) of rows [first, last)
//   backward(x, df, first, last, dx, again, sums)  dx (+)= gradient, again = f(x) once more, sums (sum_floats()) =
//                                            what these rows add to the gradients of f's own parameters
//   finish(tape, sums, n)                    adds up n shards of such sums
// x, df, to, again and dx.data stand at row `first`.
template <class Map>
Var& linear_of(Tape& tape, const char* op, Var& x, const Map& map, Param& w, Param* b, Var* residual) {
  check_linear(x.value, w, b, residual);
  const Index out = w.shape[0], in = w.shape[1], rows = x.value.rows();
  Var& y = linear_result(tape, x.shape(), out);
  const Panels panels = forward_panels(w);
  const Start start = linear_start(b, residual, out);
  const Index block = shard_rows * in, scratch_size = thread_count() * block;
  const Index strips = (rows + row_step - 1) / row_step, work = 2 * row_step * in * out;
  float* scratch = tape.borrow(scratch_size);
  parallel_for(strips, 1 + 500000 / work, [&](Index begin, Index end, int thread) {
    float* prepared = scratch + thread * block;
    const Index stop = std::min(end * row_step, rows);
    for (Index first = begin * row_step; first < stop; first += shard_rows) {
      const Index last = std::min(first + shard_rows, stop);
      map.forward(x.value.data + first * in, first, last, prepared);
      gemm_serial(last - first, out, 0, in, {prepared, in, 1}, panels, start.at_row(first), y.value.data + first * out,
                  out);
    }
  });
  tape.give_back(scratch, scratch_size);

  tape.on_backward(op, y, [&tape, &x, &w, b, residual, &y, map, rows, in, out, block, scratch_size] {
    const float* dy = y.grad;
    const Grad dx = tape.grad(x), dw = tape.grad(w.var);
    const Panels columns = backward_panels(w);
    const Index n = shards(rows), sum_floats = map.sum_floats();
    float* again = tape.borrow(rows * in);
    float* df = tape.borrow(scratch_size);
    float* sums = tape.borrow(n * sum_floats);
    parallel_for(n, 1 + 500000 / (2 * shard_rows * in * out), [&](Index begin, Index end, int thread) {
      for (Index s = begin; s < end; ++s) {
        const Index first = s * shard_rows, last = std::min(first + shard_rows, rows);
        float* gradient = df + thread * block;
        gemm_serial(last - first, in, 0, out, {dy + first * out, out, 1}, columns, {}, gradient, in);
        map.backward(x.value.data + first * in, gradient, first, last, {dx.data + first * in, dx.add},
                     again + first * in, sums + s * sum_floats);
      }
    });
    map.finish(tape, sums, n);
    tape.give_back(sums, n * sum_floats);
    tape.give_back(df, scratch_size);
    float* packed = tape.borrow(weight_grad_scratch());
    weight_grad(rows, out, in, dy, again, dw.add, dw.data, packed);
    tape.give_back(packed, weight_grad_scratch());
    tape.give_back(again, rows * in);
    if (b) bias_backward(tape, *b, dy, rows);
    if (residual) tape.pass_on(y, *residual);
  });
  return y;
}

}  // namespace qkgpt
