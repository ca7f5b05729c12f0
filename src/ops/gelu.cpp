// gelu(x) = x Phi(x)  (Hendrycks, Gimpel, arXiv 1606.08415, the exact form)
//   gelu'(x) = Phi(x) + x phi(x)
// One exponential gives phi and Phi (kernels/vmath.h), and so gelu'(x) for the gradient together with gelu(x), which
// backward makes again from x.
#include "ops/linear_of.h"

namespace qkgpt {
namespace {

struct Gelu {
  Index width;

  void forward(const float* x, Index first, Index last, float* y) const {
    for_vectors((last - first) * width, [&](Index i, auto n) {
      const vec xi = load_part(x + i, n);
      store_part(y + i, xi * normal(xi).distribution, n);
    });
  }

  void backward(const float* x, const float* dy, Index first, Index last, Grad dx, float* y, float*) const {
    for_vectors((last - first) * width, [&](Index i, auto n) {
      const vec xi = load_part(x + i, n);
      const Normal at = normal(xi);
      const vec d = load_part(dy + i, n) * (at.distribution + xi * at.density);
      store_part(y + i, xi * at.distribution, n);
      store_part(dx.data + i, dx.add ? load_part(dx.data + i, n) + d : d, n);
    });
  }

  static Index sum_floats() { return 0; }
  void finish(Tape&, const float*, Index) const {}
};

}  // namespace

Var& gelu_linear(Tape& tape, Var& x, Param& w, Param* b, Var* residual) {
  return linear_of(tape, "gelu_linear", x, Gelu{x.value.columns()}, w, b, residual);
}

}  // namespace qkgpt
