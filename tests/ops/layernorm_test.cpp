#include "gradient_check.h"
#include "ops/ops.h"

using namespace qkgpt;
using namespace qkgpt::test;

namespace {

// The op multiplies what it normalises by W^T: with the identity the product changes nothing.
Array<double> identity(Index C) {
  Array<double> w(C * C);
  for (Index c = 0; c < C; ++c) w[c * C + c] = 1.0;
  return w;
}

std::vector<Leaf> leaves(Shape shape, double deviation) {
  const Index C = shape.columns();
  return {{"x", shape, normals(shape.size(), 1, deviation)},
          {"W", {C, C}, identity(C)},
          {"gain", {C}, uniforms(C, 2, 0.5, 1.5)},
          {"shift", {C}, normals(C, 3)}};
}

const auto op = [](Tape& tape, std::deque<Param>& p) -> Var& {
  return layernorm_linear(tape, p[0].var, p[2], p.size() > 3 ? &p[3] : nullptr, p[1], nullptr);
};

const auto formula = [](const auto& x) {
  using Numbers = std::decay_t<decltype(x[0])>;
  const Index C = x[2].size();
  return reference::linear(reference::layernorm(x[0], x[2], x.size() > 3 ? x[3] : Numbers(), 1e-5), x[1], Numbers(), C,
                           x[1].size() / C);
};

}  // namespace

TEST_CASE("layernorm and its gradients agree with the formula", "[gradient]") {
  // ordinary rows, and rows whose variance is like epsilon or far below it, where epsilon decides the result
  for (const double deviation : {1.0, 1e-2, 3e-3, 1e-4})
    for (const Shape& shape : {Shape{2, 7, 15}, Shape{3, 65}, Shape{129, 4}, Shape{5, 2}}) {
      INFO("deviation " << deviation << " rows " << shape.rows() << " C " << shape.columns());
      auto all = leaves(shape, deviation);
      if (shape.columns() == 2) all[0].floor = 1.0;  // dx of two numbers is of the order of epsilon
      check_op(all, op, formula);
      all.pop_back();
      check_op(all, op, formula);
    }
}

TEST_CASE("layernorm agrees with the formula when several threads share the rows", "[gradient]") {
  check_op_sampled(leaves({700, 96}, 1.0), op, formula, 30);
}

TEST_CASE("layernorm of a large mean keeps the digits of the variance", "[gradient]") {
  auto all = leaves({4, 33}, 1.0);
  for (Index i = 0; i < all[0].value.size(); ++i) all[0].value[i] = to_float(all[0].value[i] + 8.0);
  check_op(all, op, formula);
}

TEST_CASE("layernorm of a constant row is the shift", "[gradient]") {
  auto all = leaves({3, 15}, 1.0);
  for (Index i = 0; i < 15; ++i) all[0].value[i] = 0.0, all[0].value[15 + i] = 2.5;
  check_op(all, op, formula);
}

TEST_CASE("layernorm of one number is the shift and its gain has no gradient", "[gradient]") {
  // pytorch/pytorch#188375: the gain of a layer of one element must not get a gradient either
  auto all = leaves({5, 1}, 1.0);
  all[0].floor = 316.0;  // 1 / sqrt(epsilon), which multiplies the rounding of a difference that is zero
  check_op(all, op, formula);
  CHECK(largest(run(all, normals(5, 4), op).gradients[2]) == 0.0);
}

TEST_CASE("x gradient of layernorm is orthogonal to constants and nearly to x", "[gradient]") {
  const auto all = leaves({9, 33}, 1.0);
  const Result got = run(all, normals(9 * 33, 4), op);
  for (Index row = 0; row < 9; ++row) {
    double sum = 0.0, along = 0.0;
    for (Index c = 0; c < 33; ++c) {
      sum += got.gradients[0][row * 33 + c];
      along += got.gradients[0][row * 33 + c] * all[0].value[row * 33 + c];
    }
    CHECK(std::abs(sum) < 1e-5);
    CHECK(std::abs(along) < 1e-3);  // epsilon r^2 (y . t)
  }
}

TEST_CASE("layernorm_linear and its gradients agree with the formula", "[gradient]") {
  const Index sizes[][3] = {{1, 1, 1}, {14, 15, 65}, {50, 33, 7}, {97, 16, 48}};  // rows, in, out
  for (const auto& [rows, in, out] : sizes) {
    INFO("rows " << rows << " in " << in << " out " << out);
    auto all = leaves({rows, in}, 1.0);
    all[1] = {"W", {out, in}, normals(out * in, 5, 0.25)};
    if (in == 1) all[0].floor = 316.0;
    all.push_back({"b", {out}, normals(out, 6)});
    check_op(
        all,
        [](Tape& tape, std::deque<Param>& p) -> Var& {
          return layernorm_linear(tape, p[0].var, p[2], &p[3], p[1], &p[4]);
        },
        [in = in, out = out](const auto& x) {
          return reference::linear(reference::layernorm(x[0], x[2], x[3], 1e-5), x[1], x[4], in, out);
        });
  }
}

TEST_CASE("layernorm gives the same bits with 1 2 and 3 threads", "[unit]") {
  check_threads(leaves({700, 96}, 1.0), normals(700 * 96, 9), op);
}
