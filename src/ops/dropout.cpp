// y = x m,  m = 1 / (1 - p) with probability 1 - p, else 0  (Srivastava et al., JMLR 15, 2014)
//   dx = dy m, with m drawn again: it is a function of the stream and the element, nothing is stored.
#include "kernels/mask.h"
#include "kernels/parallel.h"
#include "ops/ops.h"

namespace qkgpt {
namespace {

constexpr Index block = 1024;

// to (+)= from * mask
void apply(const float* from, const Dropout& noise, Index n, float* to, bool add) {
  parallel_for((n + block - 1) / block, 8, [&](Index begin, Index end, int) {
    float mask[block];
    for (Index i = begin * block; i < std::min(end * block, n); i += block) {
      const Index count = std::min(block, n - i);
      dropout_mask(noise.p, noise.key, i, count, mask);
      for (Index j = 0; j < count; ++j) to[i + j] = add ? to[i + j] + from[i + j] * mask[j] : from[i + j] * mask[j];
    }
  });
}

}  // namespace

Var& dropout(Tape& tape, Var& x, const Dropout& noise) {
  if (noise.p == 0.0) return x;
  Var& y = tape.make(x.shape());
  apply(x.value.data, noise, x.size(), y.value.data, false);
  tape.on_backward("dropout", y, [&tape, &x, &y, noise] {
    const Grad dx = tape.grad(x);
    apply(y.grad, noise, x.size(), dx.data, dx.add);
  });
  return y;
}

}  // namespace qkgpt
