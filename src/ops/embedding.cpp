// y[b, t] = wte[token[b, t]] + wpe[position + t]
//   dwte[v] = sum of dy over the places where token v stands, dwpe[position + t] = sum of dy over the batch.
// Backward gives every thread a range of channels and walks the places in order: no two threads meet.
#include "kernels/parallel.h"
#include "ops/ops.h"

namespace qkgpt {
namespace {

void forward(const std::int32_t* tokens, const float* wte, const float* wpe, Index B, Index T, Index C, float* y) {
  parallel_for(B * T, 1 + 10000 / C, [&](Index begin, Index end, int) {
    for (Index i = begin; i < end; ++i) {
      const float *e = wte + tokens[i] * C, *p = wpe + i % T * C;
      for (Index c = 0; c < C; ++c) y[i * C + c] = e[c] + p[c];
    }
  });
}

void backward(const std::int32_t* tokens, const float* dy, Index B, Index T, Index V, Index C, Grad dwte, Grad dwpe,
              Index position, Index positions) {
  parallel_for((C + 15) / 16, 1, [&](Index begin, Index end, int) {
    const Index first = begin * 16, last = std::min(end * 16, C);
    const auto clear = [&](float* rows, Index n) {
      for (Index r = 0; r < n; ++r) std::fill(rows + r * C + first, rows + r * C + last, 0.0f);
    };
    if (!dwte.add) clear(dwte.data, V);
    if (!dwpe.add) clear(dwpe.data, positions);
    for (Index i = 0; i < B * T; ++i) {
      float *e = dwte.data + tokens[i] * C, *p = dwpe.data + (position + i % T) * C;
      for (Index c = first; c < last; ++c) e[c] += dy[i * C + c], p[c] += dy[i * C + c];
    }
  });
}

}  // namespace

Var& embedding(Tape& tape, const std::int32_t* tokens, Index B, Index T, Param& wte, Param& wpe, Index position) {
  const Index V = wte.shape[0], C = wte.shape[1], positions = wpe.shape[0];
  check(position + T <= positions && wpe.shape[1] == C, "embedding: shapes do not fit");
  Var& y = tape.make({B, T, C});
  forward(tokens, wte.value(), wpe.value() + position * C, B, T, C, y.value.data);
  tape.on_backward("embedding", y, [&tape, tokens, &wte, &wpe, &y, position, B, T, V, C, positions] {
    const Grad dwte = tape.grad(wte.var), dwpe = tape.grad(wpe.var);
    backward(tokens, y.grad, B, T, V, C, dwte, dwpe, position, positions);
  });
  return y;
}

}  // namespace qkgpt
