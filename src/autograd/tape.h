// Reverse-mode automatic differentiation. Forward computes at once and, on a recording tape, leaves one step
// per op that knows the way back; backward() walks the steps from last to first. No graph, no recursion.
#pragma once
#include <chrono>
#include <new>
#include <type_traits>
#include <utility>
#include <vector>

#include "autograd/arena.h"
#include "autograd/tensor.h"

namespace qkgpt {

// A value and the gradient of the loss with respect to it.
struct Var {
  Tensor value;
  float* grad = nullptr;      // same size as value; null: no buffer yet
  bool grad_started = false;  // false: grad holds nothing yet, the next write starts it

  const Shape& shape() const { return value.shape; }
  Index size() const { return value.size(); }
};

// Where a backward kernel writes: data (+)= contribution. The rule "backward adds to the gradient, and the
// first to write starts it" is kept here alone.
struct Grad {
  float* data;
  bool add;  // false: overwrite
};

// Seconds that all ops of one kind took.
struct OpTime {
  const char* op;
  double forward, backward;
};

class Tape {
 public:
  Tape(Arena& arena, bool recording) : arena_(arena), recording_(recording) { reset(); }

  bool recording() const { return recording_; }

  // Forgets everything and starts over; all Vars and buffers of the last round are gone.
  void reset();

  // A new Var, its value uninitialised; lives until reset().
  Var& make(Shape shape);

  // n floats that live until reset(): what forward keeps for backward.
  float* keep(Index n) { return arena_.take_floats(n); }

  // n floats that live until give_back(): work space of one op. Reused by size, so that a step takes the
  // same buffers every time.
  float* borrow(Index n);
  void give_back(float* p, Index n) { free_.push_back({p, n}); }

  // Leaves the step that turns out's gradient into gradients of the inputs, the last thing an op does. `op` names
  // it. `step` is called without arguments; it must be trivially destructible (capture pointers, references and
  // numbers).
  template <class Step>
  void on_backward(const char* op, Var& out, Step step) {
    if (!recording_) return;
    push(step, &out, op);
    if (times_) lap(op, &OpTime::forward);
  }

  // Leaves a call that backward makes when it comes back to this place: all later steps have been taken.
  template <class Call>
  void on_return(Call call) {
    if (recording_) push(call, nullptr, "");
  }

  // From now on adds what every op takes to `times`, a row per kind of op; null ends it.
  void measure(std::vector<OpTime>* times) { times_ = times; }

  // For use inside a step: the gradient buffer of v, taken when v has none.
  Grad grad(Var& v) {
    if (!v.grad) v.grad = borrow(v.size());
    return {v.grad, std::exchange(v.grad_started, true)};
  }

  // For use inside a step whose result y is x plus something: x's gradient grows by y's. Where x has none yet it
  // takes over y's buffer, so this must be the step's last use of y.grad.
  void pass_on(Var& y, Var& x);

  // Starts from d(loss)/d(out) = seed for every element of `out` and walks back. The gradient buffer of an
  // op's result is given back as soon as its step has run.
  void backward(Var& out, float seed = 1.0f);

 private:
  struct Step {
    void (*run)(void*);
    void* closure;
    Var* out;  // null: a call of on_return
    const char* op;
  };
  struct Buffer {
    float* data;
    Index size;
  };

  template <class F>
  void push(F f, Var* out, const char* op) {
    static_assert(std::is_trivially_destructible_v<F>);
    void* place = arena_.take(static_cast<Index>(sizeof(F)));
    new (place) F(f);
    steps_.push_back({[](void* s) { (*static_cast<F*>(s))(); }, place, out, op});
  }

  void lap(const char* op, double OpTime::*direction);  // adds the time since the last lap

  Arena& arena_;
  bool recording_;
  std::vector<Step> steps_;
  std::vector<Buffer> free_;
  std::vector<OpTime>* times_ = nullptr;
  std::chrono::steady_clock::time_point last_;
};

}  // namespace qkgpt
