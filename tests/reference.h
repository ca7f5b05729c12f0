// Every op once more, straight from its formula: plain loops, nothing clever. The number type N is a template
// argument. With double this is the oracle of the forward kernels; with std::complex<double> it is that of the
// gradients, by the complex step: df/dx = imaginary part of f(x + ih) / h. Nothing cancels, so h can be 1e-30
// and the derivative is exact to rounding. Therefore only analytic functions may touch an N (no abs, norm,
// conj), and maxima and clamps compare real parts.
#pragma once
#include <cmath>
#include <complex>
#include <vector>

#include "base/attention_kind.h"
#include "base/check.h"

namespace qkgpt::reference {

using Complex = std::complex<double>;
constexpr double complex_step = 1e-30;

inline double real(double x) { return x; }
inline double real(const Complex& z) { return z.real(); }

// erf(a + ib) for a tiny b: the first order is all that the complex step looks at.
inline double erf(double x) { return std::erf(x); }
inline Complex erf(const Complex& z) {
  const double a = z.real(), slope = 2.0 / std::sqrt(std::acos(-1.0)) * std::exp(-a * a);
  return {std::erf(a), z.imag() * slope};
}

// A vector with the project's signed indices.
template <class N>
class Array {
 public:
  Array() = default;
  explicit Array(Index n, N value = N(0)) : data_(static_cast<std::size_t>(n), value) {}
  template <class M>
  explicit Array(const std::vector<M>& values) : data_(values.begin(), values.end()) {}

  Index size() const { return static_cast<Index>(data_.size()); }
  bool empty() const { return data_.empty(); }
  N& operator[](Index i) { return data_[static_cast<std::size_t>(i)]; }
  const N& operator[](Index i) const { return data_[static_cast<std::size_t>(i)]; }
  auto begin() const { return data_.begin(); }
  auto end() const { return data_.end(); }
  bool operator==(const Array&) const = default;

 private:
  std::vector<N> data_;
};

// y (rows, O) = x (rows, I) W^T + b with W (O, I); b empty: none.
template <class N>
Array<N> linear(const Array<N>& x, const Array<N>& W, const Array<N>& b, Index I, Index O) {
  const Index rows = x.size() / I;
  Array<N> y(rows * O);
  for (Index r = 0; r < rows; ++r)
    for (Index o = 0; o < O; ++o) {
      N sum = b.empty() ? N(0) : b[o];
      for (Index i = 0; i < I; ++i) sum += x[r * I + i] * W[o * I + i];
      y[r * O + o] = sum;
    }
  return y;
}

// y = (x - mean) / sqrt(var + eps) * gain + bias over rows of C; var is the mean square, not the sample's.
template <class N>
Array<N> layernorm(const Array<N>& x, const Array<N>& gain, const Array<N>& bias, double eps) {
  using std::sqrt;
  const Index C = gain.size();
  const auto n = static_cast<double>(C);
  Array<N> y(x.size());
  for (Index row = 0; row < x.size(); row += C) {
    N mean = 0, var = 0;
    for (Index c = 0; c < C; ++c) mean += x[row + c] / n;
    for (Index c = 0; c < C; ++c) var += (x[row + c] - mean) * (x[row + c] - mean) / n;
    for (Index c = 0; c < C; ++c) {
      y[row + c] = (x[row + c] - mean) / sqrt(var + eps) * gain[c];
      if (!bias.empty()) y[row + c] += bias[c];
    }
  }
  return y;
}

// y = x Phi(x).
template <class N>
Array<N> gelu(const Array<N>& x) {
  Array<N> y(x.size());
  for (Index i = 0; i < x.size(); ++i) y[i] = x[i] * 0.5 * (1.0 + reference::erf(x[i] / std::sqrt(2.0)));
  return y;
}

// y[b, t] = wte[tokens[b, t]] + wpe[t].
template <class N>
Array<N> embedding(const std::vector<std::int32_t>& tokens, Index T, Index C, const Array<N>& wte,
                   const Array<N>& wpe) {
  Array<N> y(static_cast<Index>(tokens.size()) * C);
  for (Index i = 0; i < y.size() / C; ++i)
    for (Index c = 0; c < C; ++c) y[i * C + c] = wte[tokens[static_cast<std::size_t>(i)] * C + c] + wpe[i % T * C + c];
  return y;
}

// y = x * mask, mask 1 / (1 - p) or 0.
template <class N>
Array<N> dropout(const Array<N>& x, const Array<double>& mask) {
  Array<N> y(x.size());
  for (Index i = 0; i < x.size(); ++i) y[i] = x[i] * mask[i];
  return y;
}

// -log softmax(z)[target] of every row; the loss is their mean.
template <class N>
Array<N> row_losses(const Array<N>& z, const std::vector<std::int32_t>& targets) {
  using std::exp, std::log;
  const Index rows = static_cast<Index>(targets.size()), V = z.size() / rows;
  Array<N> loss(rows);
  for (Index r = 0; r < rows; ++r) {
    double max = real(z[r * V]);
    for (Index v = 0; v < V; ++v) max = std::max(max, real(z[r * V + v]));
    N sum = 0;
    for (Index v = 0; v < V; ++v) sum += exp(z[r * V + v] - max);
    loss[r] = max + log(sum) - z[r * V + targets[static_cast<std::size_t>(r)]];
  }
  return loss;
}

template <class N>
Array<N> cross_entropy(const Array<N>& z, const std::vector<std::int32_t>& targets) {
  Array<N> mean(1);
  for (const N& loss : row_losses(z, targets)) mean[0] += loss / static_cast<double>(targets.size());
  return mean;
}

// A row of q or k before the gain.
template <class N>
Array<N> normalised(QkNorm norm, double eps, const Array<N>& x) {
  using std::sqrt;
  const auto m = static_cast<double>(x.size());
  N mean = 0, square = 0, deviation = 0;
  for (const N& xc : x) mean += xc / m;
  for (const N& xc : x) square += xc * xc, deviation += (xc - mean) * (xc - mean);
  N centre = 0, size = 1;
  if (norm == QkNorm::l2) size = sqrt(square);
  if (norm == QkNorm::l2 && !(real(size) > eps)) size = eps;
  if (norm == QkNorm::rms || norm == QkNorm::rms_full) size = sqrt(square / m + eps);
  if (norm == QkNorm::layernorm) centre = mean, size = sqrt(deviation / m + eps);
  Array<N> y(x.size());
  for (Index c = 0; c < x.size(); ++c) y[c] = (x[c] - centre) / size;
  return y;
}

struct Attention {
  Index B, T, C, H;
  QkNorm norm;
  LogitScale scale;
  double eps, fixed_scale;
  double cap = 0.0;  // 0: none
};

// qkv (B, T, 3C) -> y (B, T, C). `parameter` holds g or a; gains (d), or (C) for rms_full, or empty; `mask`
// (B, H, T, T) multiplies P, empty: no dropout. S (B, H, T, T), if wanted: the scores that enter softmax.
template <class N>
Array<N> attention(const Attention& a, const Array<N>& qkv, const Array<N>& parameter, const Array<N>& q_gain,
                   const Array<N>& k_gain, const Array<double>& mask, Array<N>* S = nullptr) {
  using std::exp, std::tanh;
  const Index T = a.T, C = a.C, d = C / a.H, group = a.norm == QkNorm::rms_full ? C : d;
  const auto prepared = [&](Index part, const Array<N>& gain) {  // part 0: q, 1: k
    Array<N> out(a.B * T * C), x(group);
    for (Index row = 0; row < a.B * T; ++row)
      for (Index first = 0; first < C; first += group) {
        for (Index c = 0; c < group; ++c) x[c] = qkv[row * 3 * C + part * C + first + c];
        const Array<N> y = normalised(a.norm, a.eps, x);
        for (Index c = 0; c < group; ++c)
          out[row * C + first + c] = gain.empty() ? y[c] : y[c] * gain[(first + c) % gain.size()];
      }
    return out;
  };
  const Array<N> q = prepared(0, q_gain), k = prepared(1, k_gain);
  const double root = std::sqrt(static_cast<double>(d));
  N scale = 1.0 / root;
  if (a.scale == LogitScale::temperature) scale = parameter[0] / root;
  if (a.scale == LogitScale::learned) scale = parameter[0];
  if (a.scale == LogitScale::fixed) scale = a.fixed_scale;

  Array<N> y(a.B * T * C), p(T);
  if (S) *S = Array<N>(a.B * a.H * T * T);
  for (Index b = 0; b < a.B; ++b)
    for (Index h = 0; h < a.H; ++h)
      for (Index i = 0; i < T; ++i) {
        const Index row = (b * T + i) * C + h * d, place = ((b * a.H + h) * T + i) * T;
        double max = 0.0;
        for (Index j = 0; j <= i; ++j) {
          N dot = 0;
          for (Index c = 0; c < d; ++c) dot += q[row + c] * k[(b * T + j) * C + h * d + c];
          p[j] = a.cap > 0.0 ? a.cap * tanh(scale * dot / a.cap) : scale * dot;
          if (S) (*S)[place + j] = p[j];
          max = j == 0 ? real(p[j]) : std::max(max, real(p[j]));
        }
        N sum = 0;
        for (Index j = 0; j <= i; ++j) p[j] = exp(p[j] - max), sum += p[j];
        for (Index j = 0; j <= i; ++j) {
          const N weight = p[j] / sum * (mask.empty() ? 1.0 : mask[place + j]);
          for (Index c = 0; c < d; ++c) y[row + c] += weight * qkv[(b * T + j) * 3 * C + 2 * C + h * d + c];
        }
      }
  return y;
}

}  // namespace qkgpt::reference
