// Error bounds of the vector functions against libm in double, sampled densely.
#include "kernels/vmath.h"

#include <functional>
#include <string_view>

#include "catch.h"

using namespace qkgpt;

namespace {

constexpr double ulp = 0x1p-24;  // relative size of one rounding to float32

// Without fused multiply-add (the baseline build) products are rounded once more.
constexpr double slack = std::string_view(simd_name) == "baseline" ? 2.0 : 1.0;

float lane(vec (*f)(vec), float x) {
  float y[lanes];
  store(y, f(splat(x)));
  return y[0];
}

// Calls look(x, f(x)) for `count` numbers evenly spread over [low, high].
void sample(vec (*f)(vec), double low, double high, int count, const std::function<void(double, double)>& look) {
  float x[lanes], y[lanes];
  for (int i = 0; i < count; i += lanes) {
    for (int l = 0; l < lanes; ++l)
      x[l] = static_cast<float>(low + (high - low) * static_cast<double>(i + l) / static_cast<double>(count + lanes));
    store(y, f(load(x)));
    for (int l = 0; l < lanes; ++l) look(static_cast<double>(x[l]), static_cast<double>(y[l]));
  }
}

// The largest |f(x) - exact(x)| / scale(x); infinite if a value is not a number.
double worst(vec (*f)(vec), double low, double high, const std::function<double(double)>& exact,
             const std::function<double(double)>& scale) {
  double most = 0.0;
  sample(f, low, high, 1000000, [&](double x, double y) {
    const double e = std::abs(y - exact(x)) / scale(x);
    most = e <= most ? most : std::isnan(e) ? INFINITY : e;
  });
  return most;
}

double normal_distribution(double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); }
double normal_density(double x) { return std::exp(-0.5 * x * x) / std::sqrt(2.0 * std::acos(-1.0)); }

const auto exponential = [](double x) { return std::exp(x); };
const auto gelu = [](double x) { return x * normal_distribution(x); };
vec vector_gelu(vec x) { return x * normal(x).distribution; }
vec vector_gelu_slope(vec x) { return normal(x).distribution + x * normal(x).density; }

}  // namespace

TEST_CASE("exp is within 1.6 roundings from -87 to 88", "[unit]") {
  CHECK(worst(exp, -87.0, 88.0, exponential, exponential) <= slack * 1.6 * ulp);
  CHECK(worst(exp, -1.0, 1.0, exponential, exponential) <= slack * 1.6 * ulp);
  CHECK(lane(exp, 0.0f) == 1.0f);
}

TEST_CASE("exp of far negative numbers is next to nothing and of NaN is NaN", "[unit]") {
  for (const float x : {-87.5f, -100.0f, -1e10f, -INFINITY}) {
    CHECK(lane(exp, x) >= 0.0f);
    CHECK(lane(exp, x) < 1.3e-38f);
  }
  CHECK(std::isnan(lane(exp, NAN)));
  CHECK(lane(exp, INFINITY) > 1e38f);
}

TEST_CASE("exp grows with its argument", "[unit]") {
  double last = 0.0;
  bool grows = true;
  sample(exp, -87.0, 88.0, 200000, [&](double, double y) { grows = grows && y > last, last = y; });
  CHECK(grows);
}

TEST_CASE("tanh is within two roundings of one and odd", "[unit]") {
  const auto exact = [](double x) { return std::tanh(x); };
  CHECK(worst(tanh, -10.0, 10.0, exact, [](double) { return 1.0; }) <= slack * 2.0 * ulp);
  CHECK(worst(tanh, 1e-6, 0.624, exact, exact) <= slack * 3.0 * ulp);
  for (const float x : {0.0f, 0.3f, 0.625f, 2.0f, 50.0f}) CHECK(lane(tanh, -x) == -lane(tanh, x));
  CHECK(lane(tanh, 50.0f) == 1.0f);
  CHECK(lane(tanh, INFINITY) == 1.0f);
  CHECK(std::isnan(lane(tanh, NAN)));
}

TEST_CASE("normal distribution and density keep their relative error in the tails", "[unit]") {
  const auto distribution = [](vec x) { return normal(x).distribution; };
  const auto density = [](vec x) { return normal(x).density; };
  // x^2 / 2 is rounded before it is exponentiated: x^2 / 4 more roundings at x
  CHECK(worst(distribution, -3.0, 13.5, normal_distribution, normal_distribution) <= slack * 11.0 * ulp);
  CHECK(worst(distribution, -12.5, -3.0, normal_distribution, normal_distribution) <= slack * 100.0 * ulp);
  CHECK(worst(density, -3.0, 3.0, normal_density, normal_density) <= slack * 8.0 * ulp);
  CHECK(worst(density, -13.5, 13.5, normal_density, [](double) { return 1.0; }) <= slack * 2.0 * ulp);
  CHECK(lane(distribution, 0.0f) == 0.5f);
}

TEST_CASE("gelu and its derivative are within their stated bounds", "[unit]") {
  const auto size = [](double x) { return std::max(1.0, std::abs(x)); };
  CHECK(worst(vector_gelu, -13.5, 13.5, gelu, size) <= slack * 1.2e-7);
  CHECK(worst(vector_gelu, -3.0, 13.5, gelu, [](double x) { return std::abs(gelu(x)) + 1e-300; }) <=
        slack * 11.0 * ulp);
  const auto slope = [](double x) { return normal_distribution(x) + x * normal_density(x); };
  CHECK(worst(vector_gelu_slope, -13.5, 13.5, slope, [](double) { return 1.0; }) <= slack * 2.5e-7);
}

TEST_CASE("gelu far away is zero or the number itself", "[unit]") {
  for (const float x : {20.0f, 100.0f, 1e4f}) {
    CHECK(lane(vector_gelu, x) == x);
    CHECK(std::abs(lane(vector_gelu, -x)) < 1e-30f);
  }
  CHECK(std::isnan(lane(vector_gelu, NAN)));
}

TEST_CASE("sums and maxima over lanes see every lane", "[unit]") {
  float x[lanes];
  for (int i = 0; i < lanes; ++i) {
    std::fill_n(x, lanes, -2.0f);
    x[i] = 5.0f;
    CHECK(max_lanes(load(x)) == 5.0f);
    CHECK(sum_lanes(load(x)) == 5.0f - 2.0f * static_cast<float>(lanes - 1));
  }
}

TEST_CASE("splat keeps every number and part loads stop where they are told", "[unit]") {
  for (const float x : {0.0f, -0.0f, 1e-38f, -3.5f, 3e38f}) {
    float y[lanes];
    store(y, splat(x));
    for (const float v : y) CHECK((v == x && std::signbit(v) == std::signbit(x)));
  }
  const std::vector<float> from(static_cast<std::size_t>(lanes), 2.0f);
  for (Index n = 1; n <= lanes; ++n) {
    std::vector<float> to(static_cast<std::size_t>(lanes), 7.0f), exact(from.begin(), from.begin() + n);
    float all[lanes];
    store(all, load_part(exact.data(), n));
    store_part(to.data(), load_part(exact.data(), n), n);
    for (Index i = 0; i < lanes; ++i) {
      CHECK(all[i] == (i < n ? 2.0f : 0.0f));
      CHECK(to[static_cast<std::size_t>(i)] == (i < n ? 2.0f : 7.0f));
    }
  }
}
