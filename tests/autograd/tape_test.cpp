#include "autograd/tape.h"

#include "gradient_check.h"
#include "kernels/gemm.h"
#include "kernels/rows.h"
#include "ops/ops.h"

using namespace qkgpt;
using namespace qkgpt::test;

namespace {

struct Net {
  Params params;
  Param &x = params.add("x", {5, 32}, false), &w = params.add("w", {32, 32}, true);
  Param &gain = params.add("gain", {32}, false), &bias = params.add("bias", {32}, false);
  Net() {
    params.allocate(true);
    for (Param& p : params.list())
      for (Index i = 0; i < p.size(); ++i) p.value()[i] = 0.01f * static_cast<float>(i % 17);
  }

  Var& forward(Tape& tape) {
    Var* y = &x.var;
    for (int layer = 0; layer < 6; ++layer)
      y = &gelu_linear(tape, layernorm_linear(tape, *y, gain, &bias, w, nullptr), w, nullptr);
    return *y;
  }
  void step(Tape& tape) {
    params.start_gradients();
    tape.reset();
    tape.backward(forward(tape));
  }
  Array<double> gradient() const { return Array<double>(std::vector<float>(w.var.grad, w.var.grad + w.size())); }
};

}  // namespace

TEST_CASE("arena memory is aligned and apart", "[unit]") {
  Arena arena;
  std::vector<char*> taken;
  for (const Index n : {1, 64, 65, 1000, 100000}) {
    auto* p = static_cast<char*>(arena.take(n));
    CHECK(reinterpret_cast<std::uintptr_t>(p) % 64 == 0);
    std::fill_n(p, n, static_cast<char>(taken.size() + 1));
    taken.push_back(p);
  }
  for (std::size_t i = 0; i < taken.size(); ++i) CHECK(*taken[i] == static_cast<char>(i + 1));
  CHECK(arena.peak() == 64 + 64 + 128 + 1024 + 100032);
}

TEST_CASE("an arena joins its blocks at reset and then allocates no more", "[unit]") {
  Arena arena;
  for (int step = 0; step < 4; ++step) {
    for (int i = 0; i < 50; ++i) arena.take(1000);
    arena.reset();
    if (step == 0) continue;
    const Index allocations = arena.allocations();
    for (int i = 0; i < 50; ++i) arena.take(1000);
    CHECK(arena.allocations() == allocations);
    CHECK(arena.capacity() == 50 * 1024);
    arena.reset();
  }
  Arena sized(4096);
  sized.take(4096);
  CHECK(sized.allocations() == 0);
}

TEST_CASE("memory is zero at first", "[unit]") {
  const Memory memory(10000);
  for (Index i = 0; i < 2500; ++i) REQUIRE(memory.floats()[i] == 0.0f);
}

TEST_CASE("from the second step on training allocates nothing and repeats its bits", "[unit]") {
  Net net;
  Arena arena;
  Tape tape(arena, true);
  net.step(tape);
  const Array<double> first = net.gradient();
  net.step(tape);
  const Index allocations = arena.allocations(), peak = arena.peak(), capacity = arena.capacity();
  for (int step = 0; step < 3; ++step) {
    net.step(tape);
    CHECK(arena.allocations() == allocations);
    CHECK(arena.peak() == peak);
    CHECK(arena.capacity() == capacity);
    CHECK(net.gradient() == first);
  }
}

TEST_CASE("backward reuses the gradient buffers of layers it has passed", "[unit]") {
  Net net;
  Arena arena;
  Tape tape(arena, true);
  Var& y = net.forward(tape);
  const Index before = arena.peak();
  tape.backward(y);
  // Of 12 results of 5 x 32 floats, two gradients live at a time; the rest is the work space of one linear layer:
  // a block of prepared rows per thread, the rows made again, and what the weight's gradient packs.
  const Index work = 4 * (weight_grad_scratch() + thread_count() * shard_rows * 32 + 5 * 32 + 2 * 32);
  CHECK(arena.peak() - before <= 2 * 5 * 32 * 4 + work + 6 * 64);
}

TEST_CASE("a borrowed buffer is given out again by size", "[unit]") {
  Arena arena;
  Tape tape(arena, true);
  float *a = tape.borrow(10), *b = tape.borrow(20);
  tape.give_back(a, 10);
  tape.give_back(b, 20);
  CHECK(tape.borrow(20) == b);
  CHECK(tape.borrow(10) == a);
  CHECK(tape.borrow(10) != a);
}

TEST_CASE("only what the loss depends on gets a gradient", "[unit]") {
  Net net;
  Arena arena;
  Tape tape(arena, true);
  Var& used = add(tape, net.x.var, net.x.var);
  Var& unused = linear(tape, net.x.var, net.w, nullptr);
  tape.backward(used);
  CHECK(unused.grad == nullptr);
  CHECK(net.x.var.grad_started);
  CHECK_FALSE(net.w.var.grad_started);
}

TEST_CASE("backward starts from the seed", "[unit]") {
  for (const float seed : {1.0f, -0.25f, 0.0f}) {
    Net net;
    Arena arena;
    Tape tape(arena, true);
    tape.backward(add(tape, net.x.var, net.x.var), seed);
    for (Index i = 0; i < net.x.size(); ++i) REQUIRE(net.x.var.grad[i] == 2.0f * seed);
  }
}

TEST_CASE("gradients add up over micro batches until they are started again", "[unit]") {
  Net net;
  Arena arena;
  Tape tape(arena, true);
  net.step(tape);
  const Array<double> once = net.gradient();
  tape.reset();
  tape.backward(net.forward(tape));
  const Array<double> twice = net.gradient();
  Array<double> sum = once;
  for (Index i = 0; i < sum.size(); ++i) sum[i] *= 2.0;
  CHECK(difference(twice, sum) <= 1e-6 * largest(sum));
  net.step(tape);
  CHECK(net.gradient() == once);
}

TEST_CASE("a second backward on the same tape adds the same again", "[unit]") {
  Net net;
  Arena arena;
  Tape tape(arena, true);
  Var& y = net.forward(tape);
  tape.backward(y);
  Array<double> twice = net.gradient();
  for (Index i = 0; i < twice.size(); ++i) twice[i] *= 2.0;
  tape.backward(y);
  CHECK(difference(net.gradient(), twice) <= 1e-6 * largest(twice));
}

TEST_CASE("a tape that does not record leaves no steps", "[unit]") {
  Net net;
  Arena arena, recorded;
  Tape tape(arena, false), recording(recorded, true);
  Var& y = net.forward(tape);
  Var& same = net.forward(recording);
  CHECK(std::equal(y.value.data, y.value.data + y.size(), same.value.data));
  CHECK(arena.peak() < recorded.peak());
  CHECK_THROWS_AS(tape.backward(y), std::logic_error);
}

TEST_CASE("parameters have names of their own and start on cache lines", "[unit]") {
  Params params;
  params.add("a", {3}, false);
  params.add("b", {2, 5}, true);
  CHECK_THROWS_AS(params.add("a", {1}, false), std::logic_error);
  params.allocate(true);
  CHECK(params.count() == 13);
  CHECK(params.count(true) == 10);
  CHECK(params.tensors(false) == 1);
  CHECK(params.find("b") == &params.list()[1]);
  CHECK(params.find("c") == nullptr);
  for (Param& p : params.list())
    for (float* f : {p.value(), p.var.grad, p.exp_avg, p.exp_avg_sq})
      CHECK(reinterpret_cast<std::uintptr_t>(f) % 64 == 0);
}

TEST_CASE("shapes count rows and columns", "[unit]") {
  const Shape s{2, 3, 5};
  CHECK(s.size() == 30);
  CHECK(s.rows() == 6);
  CHECK(s.columns() == 5);
  CHECK(Shape{}.size() == 1);
  CHECK(Shape{0}.size() == 0);
}
