#include "gradient_check.h"
#include "ops/ops.h"

using namespace qkgpt;
using namespace qkgpt::test;

namespace {

auto op(const std::vector<std::int32_t>& targets, double* rows = nullptr) {
  return [&targets, rows](Tape& tape, std::deque<Param>& p) -> Var& {
    return cross_entropy(tape, p[0].var, targets.data(), rows);
  };
}

auto formula(const std::vector<std::int32_t>& targets) {
  return [&targets](const auto& x) { return reference::cross_entropy(x[0], targets); };
}

std::vector<Leaf> logits(Index rows, Index V, double deviation) {
  return {{"logits", {rows, V}, normals(rows * V, 1, deviation), 1, 0.02}};
}

}  // namespace

TEST_CASE("cross_entropy and its gradient agree with the formula", "[gradient]") {
  const Index sizes[][2] = {{7, 65}, {1, 2}, {129, 17}, {14, 16}, {3, 1}, {5, 130}};
  for (const double deviation : {1.0, 5.0})
    for (const auto& [rows, V] : sizes) {
      INFO("rows " << rows << " V " << V << " deviation " << deviation);
      auto targets = integers(rows, 2, V);
      targets.front() = 0;
      targets.back() = static_cast<std::int32_t>(V - 1);
      check_op(logits(rows, V, deviation), op(targets), formula(targets));
    }
}

TEST_CASE("cross_entropy reports the loss of each row", "[unit]") {
  const auto targets = integers(9, 2, 65);
  const auto leaf = logits(9, 65, 2.0);
  std::vector<double> rows(9);
  const Result got = run(leaf, Array<double>(1, 1.0), op(targets, rows.data()));
  CHECK(difference(Array<double>(rows), reference::row_losses(leaf[0].value, targets)) < 1e-6);
  double mean = 0.0;
  for (const double loss : rows) mean += loss / 9.0;
  CHECK(std::abs(got.y[0] - mean) < 1e-6);
}

TEST_CASE("equal logits lose ln V in every row", "[unit]") {
  const auto targets = integers(6, 2, 65);
  const Result got = run({{"logits", {6, 65}, Array<double>(6 * 65, 3.0)}}, Array<double>(1, 1.0), op(targets));
  CHECK(std::abs(got.y[0] - 4.17438726989) < 1e-6);
}

TEST_CASE("huge logits keep the digits of loss and gradient", "[gradient]") {
  // pytorch/pytorch#11752: the rounded sum of maximum and log of the sum loses them
  const std::vector<std::int32_t> targets = {0, 1, 2};
  Array<double> z(9);
  z[0] = 1e4, z[1] = -1e4, z[3] = 1e4, z[4] = -1e4, z[6] = 3e4, z[7] = 3e4, z[8] = 3e4;
  check_op({{"logits", {3, 3}, z}}, op(targets), formula(targets));
}

TEST_CASE("the gradient of a confident row is right to float32 rounding of the probability", "[gradient]") {
  const std::vector<std::int32_t> targets = {1};
  Array<double> z(5);
  z[1] = 8.0;  // p of the target is 0.9987
  check_op({{"logits", {1, 5}, z, 1, 0.02}}, op(targets), formula(targets));
}

TEST_CASE("logits gradient sums to zero over every row", "[gradient]") {
  const auto targets = integers(7, 2, 65);
  const Result got = run(logits(7, 65, 3.0), Array<double>(1, 1.0), op(targets));
  for (Index r = 0; r < 7; ++r) {
    double sum = 0.0;
    for (Index v = 0; v < 65; ++v) sum += got.gradients[0][r * 65 + v];
    CHECK(std::abs(sum) < 1e-7);
  }
}

TEST_CASE("a logit that is not a number reaches the loss", "[unit]") {
  const std::vector<std::int32_t> targets = {0, 0};
  for (const Index place : {0, 1, 16, 19}) {
    Array<double> z = normals(40, 1);
    z[place] = NAN;
    CHECK(std::isnan(run({{"logits", {2, 20}, z}}, Array<double>(1, 1.0), op(targets)).y[0]));
    z[place] = INFINITY;
    CHECK(!std::isfinite(run({{"logits", {2, 20}, z}}, Array<double>(1, 1.0), op(targets)).y[0]));
  }
}

TEST_CASE("cross_entropy gives the same bits with 1 2 and 3 threads", "[unit]") {
  const auto targets = integers(500, 2, 65);
  check_threads(logits(500, 65, 2.0), Array<double>(1, 1.0), op(targets));
}
