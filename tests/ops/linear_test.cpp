#include "gradient_check.h"
#include "ops/ops.h"

using namespace qkgpt;
using namespace qkgpt::test;

namespace {

std::vector<Leaf> leaves(Index rows, Index in, Index out) {
  const double deviation = 1.0 / std::sqrt(static_cast<double>(in));
  return {{"x", {rows, in}, normals(rows * in, 1)},
          {"W", {out, in}, normals(out * in, 2, deviation)},
          {"b", {out}, normals(out, 3)}};
}

const auto op = [](Tape& tape, std::deque<Param>& p) -> Var& {
  return linear(tape, p[0].var, p[1], p.size() > 2 ? &p[2] : nullptr);
};

auto formula(Index in, Index out) {
  return [=](const auto& x) {
    using Numbers = std::decay_t<decltype(x[0])>;
    return reference::linear(x[0], x[1], x.size() > 2 ? x[2] : Numbers(), in, out);
  };
}

}  // namespace

TEST_CASE("linear and its gradients agree with the formula", "[gradient]") {
  // rows, in, out: one of everything, no multiple of a vector, a few columns more than a panel, rows beyond a shard
  const Index sizes[][3] = {{1, 1, 1}, {14, 15, 65}, {7, 65, 15}, {13, 16, 32}, {129, 5, 3}, {2, 33, 1}};
  for (const auto& [rows, in, out] : sizes) {
    INFO("rows " << rows << " in " << in << " out " << out);
    auto all = leaves(rows, in, out);
    check_op(all, op, formula(in, out));
    all.pop_back();
    check_op(all, op, formula(in, out));
  }
}

TEST_CASE("linear agrees with the formula beyond the blocks of the matrix kernels", "[gradient]") {
  check_op_sampled(leaves(261, 300, 67), op, formula(300, 67), 40);
  check_op_sampled(leaves(70, 67, 530), op, formula(67, 530), 40);
}

TEST_CASE("linear onto a residual adds it and passes its gradient on", "[gradient]") {
  // The residual is used a second time (as a pre-norm block does) or not, so its gradient is added to or taken over.
  for (const bool twice : {true, false}) {
    std::vector<Leaf> all = {{"x", {13, 15}, normals(13 * 15, 1)},
                             {"W", {9, 15}, normals(9 * 15, 2, 0.25)},
                             {"residual", {13, 9}, normals(13 * 9, 3)},
                             {"V", {9, 9}, normals(81, 4, 0.25)}};
    if (!twice) all.pop_back();
    check_op(
        all,
        [twice](Tape& tape, std::deque<Param>& p) -> Var& {
          Var& r = add(tape, p[2].var, p[2].var);  // an op's result: it has no buffer of its own
          Var& y = linear(tape, p[0].var, p[1], nullptr, &r);
          return twice ? add(tape, gelu_linear(tape, r, p[3], nullptr), y) : y;
        },
        [twice](const auto& v) {
          using Numbers = std::decay_t<decltype(v[0])>;
          Numbers y = reference::linear(v[0], v[1], Numbers(), 15, 9), r = v[2];
          for (Index i = 0; i < r.size(); ++i) r[i] *= 2.0;
          const Numbers g = twice ? reference::linear(reference::gelu(r), v[3], Numbers(), 9, 9) : r;
          for (Index i = 0; i < y.size(); ++i) y[i] += twice ? r[i] + g[i] : r[i];
          return y;
        });
  }
}

TEST_CASE("linear keeps the batch and time dimensions", "[unit]") {
  auto all = leaves(14, 15, 9);
  all[0].shape = {2, 7, 15};
  Params params;
  for (const Leaf& leaf : all) params.add(leaf.name, leaf.shape, false);
  params.allocate(true);
  Arena arena;
  Tape tape(arena, true);
  CHECK(op(tape, params.list()).shape() == Shape{2, 7, 9});
  check_op(all, op, formula(15, 9));
}

TEST_CASE("gradients of a linear layer used twice add up", "[gradient]") {
  const std::vector<Leaf> all = {
      {"x", {5, 15}, normals(75, 1)}, {"W", {15, 15}, normals(225, 2, 0.25)}, {"b", {15}, normals(15, 3)}};
  const auto once = formula(15, 15);
  SECTION("the same input and weight in two branches") {
    check_op(
        all, [](Tape& t, std::deque<Param>& p) -> Var& { return add(t, op(t, p), op(t, p)); },
        [&](const auto& x) {
          auto y = once(x);
          for (Index i = 0; i < y.size(); ++i) y[i] *= 2.0;
          return y;
        });
  }
  SECTION("the same weight on its own output") {
    check_op(
        all, [](Tape& t, std::deque<Param>& p) -> Var& { return linear(t, op(t, p), p[1], &p[2]); },
        [&](const auto& x) {
          return once(std::vector{once(x), x[1], x[2]});
        });
  }
}

TEST_CASE("x added to itself has twice the gradient", "[gradient]") {
  for (const Index n : {1, 15, 40000})
    check_op_sampled(
        {{"x", {n}, normals(n, 1)}}, [](Tape& t, std::deque<Param>& p) -> Var& { return add(t, p[0].var, p[0].var); },
        [](const auto& x) {
          auto y = x[0];
          for (Index i = 0; i < y.size(); ++i) y[i] += x[0][i];
          return y;
        },
        30);
}

TEST_CASE("add passes the gradient to both branches", "[gradient]") {
  check_op(
      {{"x", {3, 7}, normals(21, 1)}, {"branch", {3, 7}, normals(21, 2)}},
      [](Tape& t, std::deque<Param>& p) -> Var& { return add(t, p[0].var, p[1].var); },
      [](const auto& x) {
        auto y = x[0];
        for (Index i = 0; i < y.size(); ++i) y[i] += x[1][i];
        return y;
      });
}

TEST_CASE("linear sees a changed weight after the next step", "[unit]") {
  Params params;
  Param &x = params.add("x", {1, 1}, false), &w = params.add("w", {1, 1}, true);
  params.allocate(true);
  Arena arena;
  Tape tape(arena, true);
  x.value()[0] = 1.0f;
  for (const float value : {2.0f, 3.0f}) {
    w.value()[0] = value;
    w.changed();
    params.start_gradients();
    tape.reset();
    Var& y = linear(tape, x.var, w, nullptr);
    tape.backward(y);
    CHECK(y.value.data[0] == value);
    CHECK(x.var.grad[0] == value);
    CHECK(w.var.grad[0] == 1.0f);
  }
}

TEST_CASE("linear gives the same bits with 1 2 and 3 threads", "[unit]") {
  check_threads(leaves(261, 300, 130), normals(261 * 130, 9), op);
  check_threads(leaves(37, 15, 530), normals(37 * 530, 9), op);
}
