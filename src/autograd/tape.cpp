#include "autograd/tape.h"

#include <algorithm>

namespace qkgpt {

void Tape::reset() {
  arena_.reset();
  steps_.clear();
  free_.clear();
}

Var& Tape::make(Shape shape) {
  Var* v = new (arena_.take(static_cast<Index>(sizeof(Var)))) Var;
  v->value = {arena_.take_floats(shape.size()), shape};
  return *v;
}

float* Tape::borrow(Index n) {
  const auto found = std::find_if(free_.rbegin(), free_.rend(), [n](const Buffer& b) { return b.size == n; });
  if (found == free_.rend()) return arena_.take_floats(n);
  float* p = found->data;
  free_.erase(std::next(found).base());
  return p;
}

void Tape::pass_on(Var& y, Var& x) {
  if (!x.grad) {
    x.grad = std::exchange(y.grad, nullptr);
    x.grad_started = true;
    return;
  }
  const Grad to = grad(x);
  for (Index i = 0; i < x.size(); ++i) to.data[i] = to.add ? to.data[i] + y.grad[i] : y.grad[i];
}

void Tape::backward(Var& out, float seed) {
  check(recording_, "backward needs a recording tape");
  const Grad start = grad(out);
  std::fill_n(start.data, out.size(), seed);
  for (auto step = steps_.rbegin(); step != steps_.rend(); ++step) {
    Var& v = *step->out;
    if (!v.grad_started) continue;  // nothing that the loss depends on
    step->run(step->closure);
    if (v.grad) give_back(std::exchange(v.grad, nullptr), v.size());
    v.grad_started = false;
  }
}

}  // namespace qkgpt
