// y = x + branch: the gradient passes unchanged to both.
#include "kernels/parallel.h"
#include "ops/ops.h"

namespace qkgpt {
namespace {

constexpr Index grain = 16384;

void pass(const float* dy, Grad to, Index n) {
  parallel_for(n, grain, [&](Index begin, Index end, int) {
    if (to.add)
      for (Index i = begin; i < end; ++i) to.data[i] += dy[i];
    else
      std::copy(dy + begin, dy + end, to.data + begin);
  });
}

}  // namespace

Var& add(Tape& tape, Var& x, Var& branch) {
  check(x.shape() == branch.shape(), "add: shapes do not fit");
  Var& y = tape.make(x.shape());
  parallel_for(x.size(), grain, [&](Index begin, Index end, int) {
    for (Index i = begin; i < end; ++i) y.value.data[i] = x.value.data[i] + branch.value.data[i];
  });
  tape.on_backward("add", y, [&tape, &x, &branch, &y] {
    pass(y.grad, tape.grad(branch), y.size());
    tape.pass_on(y, x);
  });
  return y;
}

}  // namespace qkgpt
