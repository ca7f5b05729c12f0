// exp, tanh and the normal distribution on vectors, with stated error bounds (tests/vmath_test.cpp holds us to
// them), and sums of rows in a fixed order. libm is used for single numbers only: it is slow, and picks variants by
// CPU.
#pragma once
#include <cmath>

#include "kernels/simd.h"

namespace qkgpt {

inline vec select(ivec mask, vec a, vec b) { return mask ? a : b; }
inline vec max(vec a, vec b) { return a > b ? a : b; }
inline vec abs(vec x) { return x < 0 ? -x : x; }

// Sum and maximum over the lanes, by halves: lane i and lane i + half, until one is left.
namespace detail {
template <int half, int... lane>
inline vec upper(vec v, std::integer_sequence<int, lane...>) {
  return __builtin_shufflevector(v, v, ((lane + half) % lanes)...);
}
template <int half, class Op>
inline float reduce(vec v, Op op) {
  if constexpr (half == 0)
    return v[0];
  else
    return reduce<half / 2>(op(v, upper<half>(v, std::make_integer_sequence<int, lanes>())), op);
}
}  // namespace detail
inline float sum_lanes(vec v) {
  return detail::reduce<lanes / 2>(v, [](vec a, vec b) { return a + b; });
}
inline float max_lanes(vec v) {
  return detail::reduce<lanes / 2>(v, [](vec a, vec b) { return a > b ? a : b; });
}

// e^x: x = n ln 2 + r, e^r by a polynomial of degree 6, n added to the exponent bits.
// Relative error below 1.6 * 2^-24 on [-87, 88]; below -87.3 the result is that of -87.3; NaN stays NaN.
inline vec exp(vec x) {
  const vec low = splat(-87.3f), high = splat(88.0f), shift = splat(12582912.0f);  // 1.5 * 2^23
  x = x < low ? low : x;
  x = x > high ? high : x;
  const vec n = (x * splat(1.44269504f) + shift) - shift;
  const vec r = (x - n * splat(0.693145751953125f)) - n * splat(1.42860677e-6f);
  vec p = splat(0.00139261836f) * r + splat(0.00836317905f);
  p = p * r + splat(0.0416665546f);
  p = p * r + splat(0.166665770f);
  p = p * r + splat(0.5f);
  p = p * (r * r) + r;  // 1 comes last: the only rounding at full size
  p = p + splat(1.0f);
  const ivec bits = reinterpret_cast<ivec>(n + shift) << 23;  // low bits of n + shift hold the integer n
  return reinterpret_cast<vec>(reinterpret_cast<ivec>(p) + bits);
}

// tanh: odd polynomial near 0 (Cephes), (1 - 2 / (e^2x + 1)) beyond.
constexpr float tanh_near_end = 0.625f;
inline vec tanh_near(vec x) {  // |x| < tanh_near_end
  const vec z = x * x;
  vec p = splat(-5.70498872745e-3f) * z + splat(2.06390887954e-2f);
  p = p * z + splat(-5.37397155531e-2f);
  p = p * z + splat(1.33314422036e-1f);
  p = p * z + splat(-3.33332819422e-1f);
  return p * z * x + x;
}
inline vec tanh(vec x) {
  const vec a = abs(x), big = splat(1.0f) - splat(2.0f) / (exp(a + a) + splat(1.0f));
  return select(a < tanh_near_end, tanh_near(x), x < 0 ? -big : big);
}

// Density phi(x) and distribution function Phi(x) of the standard normal with one exponential:
// Q = Phi(-|x|) = e^(-x^2/2) t R(t), t = 1 / (1 + 0.35 |x|); the shape is Hastings' (Abramowitz and Stegun
// 26.2.17), the coefficients of R are a fit of relative error 4e-8 on 0 <= |x| <= 13.3. No cancellation.
struct Normal {
  vec density, distribution;
};
inline Normal normal(vec x) {
  const vec a = abs(x), t = splat(1.0f) / (splat(0.35f) * a + splat(1.0f));
  vec r = splat(-0.02957654329f) * t + splat(0.1460690329f);
  r = r * t + splat(-0.2600329001f);
  r = r * t + splat(0.164063495f);
  r = r * t + splat(-0.02642269503f);
  r = r * t + splat(0.1068764616f);
  r = r * t + splat(0.1194981414f);
  r = r * t + splat(0.1399059745f);
  r = r * t + splat(0.1396190164f);
  const vec e = exp(splat(-0.5f) * (x * x)), q = e * (t * r);
  return {e * splat(0.3989422804f), x < 0 ? q : splat(1.0f) - q};
}

}  // namespace qkgpt
