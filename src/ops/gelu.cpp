// gelu(x) = x Phi(x)  (Hendrycks, Gimpel, arXiv 1606.08415, the exact form)
//   gelu'(x) = Phi(x) + x phi(x)
// One exponential gives both phi and Phi (kernels/vmath.h). Backward computes them again from x.
#include "kernels/parallel.h"
#include "kernels/vmath.h"
#include "ops/ops.h"

namespace qkgpt {
namespace {

vec forward_lane(vec x) { return x * normal(x).distribution; }

vec derivative(vec x) {
  const Normal n = normal(x);
  return n.distribution + x * n.density;
}

void forward(const float* x, Index n, float* y) {
  Index i = 0;
  for (; i + lanes <= n; i += lanes) store(y + i, forward_lane(load(x + i)));
  if (i < n) store_part(y + i, forward_lane(load_part(x + i, n - i)), n - i);
}

void backward(const float* x, const float* dy, Index n, float* dx, bool add) {
  Index i = 0;
  for (; i + lanes <= n; i += lanes) {
    const vec d = load(dy + i) * derivative(load(x + i));
    store(dx + i, add ? load(dx + i) + d : d);
  }
  if (i < n) {
    const Index rest = n - i;
    const vec d = load_part(dy + i, rest) * derivative(load_part(x + i, rest));
    store_part(dx + i, add ? load_part(dx + i, rest) + d : d, rest);
  }
}

constexpr Index grain = 4096;

}  // namespace

Var& gelu(Tape& tape, Var& x) {
  Var& y = tape.make(x.shape());
  parallel_for(x.size(), grain, [&](Index b, Index e, int) { forward(x.value.data + b, e - b, y.value.data + b); });
  tape.on_backward("gelu", y, [&tape, &x, &y] {
    const Grad dx = tape.grad(x);
    parallel_for(x.size(), grain,
                 [&](Index b, Index e, int) { backward(x.value.data + b, y.grad + b, e - b, dx.data + b, dx.add); });
  });
  return y;
}

}  // namespace qkgpt
