// Compares an op with its formula in reference.h: the values, and every gradient of loss = sum of R y for random
// weights R. Leaves are Params, so that each has a value, a gradient and a "started" mark.
#pragma once
#include <algorithm>
#include <string>
#include <vector>

#include "autograd/param.h"
#include "base/rng.h"
#include "catch.h"
#include "kernels/parallel.h"
#include "reference.h"

namespace qkgpt::test {

using reference::Array;
using reference::Complex;

inline double to_float(double x) { return static_cast<double>(static_cast<float>(x)); }

// Random numbers that float32 holds exactly: kernel and formula start from the same.
inline Array<double> normals(Index n, std::uint64_t seed, double deviation = 1.0) {
  Array<double> x(n);
  for (Index i = 0; i < n; ++i) x[i] = to_float(deviation * Stream(seed, "test").normal(static_cast<std::uint64_t>(i)));
  return x;
}
inline Array<double> uniforms(Index n, std::uint64_t seed, double low, double high) {
  Array<double> x(n);
  for (Index i = 0; i < n; ++i)
    x[i] = to_float(low + (high - low) * Stream(seed, "test").uniform(static_cast<std::uint64_t>(i)));
  return x;
}
inline std::vector<std::int32_t> integers(Index n, std::uint64_t seed, Index below) {
  std::vector<std::int32_t> x;
  for (Index i = 0; i < n; ++i)
    x.push_back(static_cast<std::int32_t>(Stream(seed, "test").below(static_cast<std::uint64_t>(i), below)));
  return x;
}

// The number of threads for the life of this object.
struct Threads {
  explicit Threads(int n) : before(thread_count()) { set_thread_count(n); }
  ~Threads() { set_thread_count(before); }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;
  int before;
};

struct Leaf {
  std::string name;
  Shape shape;
  Array<double> value{};
  Index parts = 1;     // tensors side by side in the columns (q, k, v), each measured by its own largest element
  double floor = 0.0;  // errors are measured by this where no element is larger (a gradient that is zero)
  bool adds = true;    // false: the op insists on being the only reader
};

struct Result {
  Array<double> y;
  std::vector<Array<double>> gradients;  // one per leaf
};

// loss (1) = seed-independent sum of weights * y: sends weights, times the seed, into y's gradient.
inline Var& weighted_sum(Tape& tape, Var& y, const std::vector<float>& weights) {
  Var& loss = tape.make({1});
  loss.value.data[0] = 0.0f;
  for (Index i = 0; i < y.size(); ++i) loss.value.data[0] += weights[static_cast<std::size_t>(i)] * y.value.data[i];
  const float* w = weights.data();
  tape.on_backward("weighted sum", loss, [&tape, &y, &loss, w] {
    const Grad dy = tape.grad(y);
    for (Index i = 0; i < y.size(); ++i) dy.data[i] = (dy.add ? dy.data[i] : 0.0f) + loss.grad[0] * w[i];
  });
  return loss;
}

// What a gradient holds before a backward that has to add to it.
inline double earlier_gradient(Index i) { return 0.25 * static_cast<double>(i % 7) - 0.5; }

// The kernels: op(tape, leaves) -> y. `earlier`: leaves that can add already hold a gradient; the others, and all
// without it, hold NaN that backward has to overwrite.
template <class Op>
Result run(const std::vector<Leaf>& leaves, const Array<double>& weights, Op op, float seed = 1.0f,
           bool earlier = false) {
  Params params;
  for (const Leaf& leaf : leaves) params.add(leaf.name, leaf.shape, false);
  params.allocate(true);
  for (std::size_t l = 0; l < leaves.size(); ++l) {
    Param& p = params.list()[l];
    p.var.grad_started = earlier && leaves[l].adds;
    for (Index i = 0; i < p.size(); ++i) {
      p.value()[i] = static_cast<float>(leaves[l].value[i]);
      p.var.grad[i] = p.var.grad_started ? static_cast<float>(earlier_gradient(i)) : NAN;
    }
  }
  Arena arena;
  Tape tape(arena, true);
  Var& y = op(tape, params.list());
  Result result;
  result.y = Array<double>(std::vector<float>(y.value.data, y.value.data + y.size()));
  tape.backward(weighted_sum(tape, y, std::vector<float>(weights.begin(), weights.end())), seed);
  for (const Param& p : params.list())
    result.gradients.emplace_back(std::vector<float>(p.var.grad, p.var.grad + p.size()));
  return result;
}

template <class N>
std::vector<Array<N>> values(const std::vector<Leaf>& leaves) {
  std::vector<Array<N>> in;
  for (const Leaf& leaf : leaves) in.emplace_back(std::vector<double>(leaf.value.begin(), leaf.value.end()));
  return in;
}

// Derivative of the loss of formula(in) by the imaginary parts that `in` carries.
template <class Formula>
double derivative(Formula formula, const std::vector<Array<Complex>>& in, const Array<double>& weights) {
  const Array<Complex> y = formula(in);
  double sum = 0.0;
  for (Index i = 0; i < y.size(); ++i) sum += weights[i] * y[i].imag();
  return sum / reference::complex_step;
}

// All gradients of the formula, one complex step per number.
template <class Formula>
Result oracle(const std::vector<Leaf>& leaves, const Array<double>& weights, Formula formula) {
  Result result;
  result.y = formula(values<double>(leaves));
  auto in = values<Complex>(leaves);
  for (auto& x : in) {
    Array<double>& gradient = result.gradients.emplace_back(x.size());
    for (Index i = 0; i < x.size(); ++i) {
      x[i].imag(reference::complex_step);
      gradient[i] = derivative(formula, in, weights);
      x[i].imag(0.0);
    }
  }
  return result;
}

inline double largest(const Array<double>& x) {
  double m = 0.0;
  for (const double v : x) m = std::isnan(v) ? v : std::max(m, std::abs(v));
  return m;
}

// Largest |a - b|; NaN if there is one.
inline double difference(const Array<double>& a, const Array<double>& b) {
  if (a.size() != b.size()) return NAN;
  Array<double> delta(a.size());
  for (Index i = 0; i < a.size(); ++i) delta[i] = a[i] - b[i];
  return largest(delta);
}

// The columns of one part of a leaf's gradient.
inline Array<double> part(const Array<double>& x, const Leaf& leaf, Index which) {
  const Index columns = leaf.shape.columns(), width = columns / leaf.parts;
  Array<double> out(x.size() / leaf.parts);
  for (Index i = 0; i < out.size(); ++i) out[i] = x[i / width * columns + which * width + i % width];
  return out;
}

inline void check_gradient(const Leaf& leaf, const Array<double>& got, const Array<double>& want, double tolerance) {
  for (Index p = 0; p < leaf.parts; ++p) {
    INFO("gradient of " << leaf.name << ", part " << p);
    const Array<double> wanted = part(want, leaf, p);
    CHECK(difference(part(got, leaf, p), wanted) <= tolerance * std::max(largest(wanted), leaf.floor));
  }
}

constexpr double float_tolerance = 1e-5;  // of the largest element of each tensor

// Values and every gradient, fresh and added to an earlier one with another seed.
template <class Op, class Formula>
void check_op(const std::vector<Leaf>& leaves, Op op, Formula formula, double tolerance = float_tolerance) {
  const Array<double> weights = normals(formula(values<double>(leaves)).size(), 99);
  const Result want = oracle(leaves, weights, formula), fresh = run(leaves, weights, op);
  CHECK(difference(fresh.y, want.y) <= tolerance * std::max(largest(want.y), 0.02));
  const Result added = run(leaves, weights, op, -2.0f, true);
  for (std::size_t l = 0; l < leaves.size(); ++l) {
    check_gradient(leaves[l], fresh.gradients[l], want.gradients[l], tolerance);
    Array<double> sum = want.gradients[l];
    for (Index i = 0; i < sum.size(); ++i) sum[i] = (leaves[l].adds ? earlier_gradient(i) : 0.0) - 2.0 * sum[i];
    INFO("added to an earlier gradient");
    Leaf leaf = leaves[l];
    leaf.floor = std::max(2.0 * leaf.floor, 0.02);  // the sum itself is rounded
    check_gradient(leaf, added.gradients[l], sum, tolerance);
  }
}

// For larger sizes: `count` numbers of each leaf, both ends among them, and the derivative in one random direction.
template <class Op, class Formula>
void check_op_sampled(const std::vector<Leaf>& leaves, Op op, Formula formula, Index count) {
  const Array<double> y = formula(values<double>(leaves)), weights = normals(y.size(), 99);
  const Result got = run(leaves, weights, op);
  CHECK(difference(got.y, y) <= float_tolerance * largest(y));
  auto in = values<Complex>(leaves);
  for (std::size_t l = 0; l < leaves.size(); ++l) {
    const Leaf& leaf = leaves[l];
    const Index n = leaf.value.size(), columns = leaf.shape.columns();
    std::vector<double> size;
    for (Index p = 0; p < leaf.parts; ++p)
      size.push_back(std::max(largest(part(got.gradients[l], leaf, p)), leaf.floor));
    double worst = 0.0;
    for (Index s = 0; s < std::min(count, n); ++s) {
      const Index i = n <= count ? s
                      : s == 0   ? 0
                      : s == 1   ? n - 1
                                 : Stream(5, "place").below(static_cast<std::uint64_t>(s), n);
      in[l][i].imag(reference::complex_step);
      const double error = std::abs(got.gradients[l][i] - derivative(formula, in, weights)) /
                           size[static_cast<std::size_t>(i % columns * leaf.parts / columns)];
      in[l][i].imag(0.0);
      worst = error <= worst ? worst : error;
    }
    const Array<double> direction = normals(n, 7 + l);
    double along = 0.0;
    for (Index i = 0; i < n; ++i) {
      in[l][i].imag(reference::complex_step * direction[i]);
      along += got.gradients[l][i] * direction[i];
    }
    INFO("gradient of " << leaf.name);
    CHECK(worst <= float_tolerance);
    CHECK(std::abs(along - derivative(formula, in, weights)) <=
          float_tolerance * std::sqrt(static_cast<double>(n)) * *std::max_element(size.begin(), size.end()));
    for (Index i = 0; i < n; ++i) in[l][i].imag(0.0);
  }
}

// The bits of y and all gradients do not depend on the number of threads.
template <class Op>
void check_threads(const std::vector<Leaf>& leaves, const Array<double>& weights, Op op) {
  const auto with = [&](int threads) {
    const Threads guard(threads);
    return run(leaves, weights, op);
  };
  const Result one = with(1);
  CHECK_FALSE(std::isnan(largest(one.y)));
  for (const int threads : {2, 3}) {
    const Result many = with(threads);
    CHECK((many.y == one.y));
    CHECK((many.gradients == one.gradients));
  }
}

}  // namespace qkgpt::test
