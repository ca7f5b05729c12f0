#include "autograd/tape.h"

#include <algorithm>
#include <string_view>

namespace qkgpt {

void Tape::reset() {
  arena_.reset();
  steps_.clear();
  free_.clear();
  if (times_) last_ = std::chrono::steady_clock::now();
}

void Tape::lap(const char* op, double OpTime::*direction) {
  const auto now = std::chrono::steady_clock::now();
  const auto same = [op](const OpTime& t) { return std::string_view(t.op) == op; };
  auto found = std::find_if(times_->begin(), times_->end(), same);
  if (found == times_->end()) found = times_->insert(found, {op, 0.0, 0.0});
  (*found).*direction += std::chrono::duration<double>(now - last_).count();
  last_ = now;
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
  if (times_) last_ = std::chrono::steady_clock::now();
  for (auto step = steps_.rbegin(); step != steps_.rend(); ++step) {
    if (!step->out) {
      step->run(step->closure);
      continue;
    }
    Var& v = *step->out;
    if (!v.grad_started) continue;  // nothing that the loss depends on
    step->run(step->closure);
    if (v.grad) give_back(std::exchange(v.grad, nullptr), v.size());
    v.grad_started = false;
    if (times_) lap(step->op, &OpTime::backward);
  }
}

}  // namespace qkgpt
