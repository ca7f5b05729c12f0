// One attention with its inputs, to be computed by the formula or by the kernels.
#pragma once
#include "gradient_check.h"
#include "kernels/mask.h"
#include "ops/ops.h"

namespace qkgpt::test {

struct AttentionCase {
  Index B = 2, T = 7, C = 15, H = 3;
  QkNorm norm = QkNorm::none;
  LogitScale scale = LogitScale::inverse_sqrt;
  double eps = 1e-6, fixed_scale = 1.75, cap = 0.0;
  Dropout noise{};
  Array<double> qkv{}, parameter{}, q_gain{}, k_gain{};  // empty: the scale has no parameter, gains are ones

  Index d() const { return C / H; }
  Index gain_size() const { return norm == QkNorm::rms_full ? C : d(); }
  double& at(Index row, Index part, Index c) { return qkv[row * 3 * C + part * C + c]; }
  double at(Index row, Index part, Index c) const { return qkv[row * 3 * C + part * C + c]; }

  // Random q, k and v, and what `norm` and `scale` need. Neither g nor a nor the gains are where training starts.
  AttentionCase& fill(double deviation = 1.0, bool gains = true) {
    qkv = normals(B * T * 3 * C, 11, deviation);
    for (Index row = 0; row < B * T; ++row)  // v stays of ordinary size
      for (Index c = 0; c < C; ++c) at(row, 2, c) = to_float(at(row, 2, c) / deviation);
    const bool learned = scale == LogitScale::temperature || scale == LogitScale::learned;
    parameter = learned ? Array<double>(1, to_float(1.7)) : Array<double>();
    const bool gained = gains && norm != QkNorm::none;
    q_gain = gained ? uniforms(gain_size(), 12, 0.5, 1.5) : Array<double>();
    k_gain = gained ? uniforms(gain_size(), 13, 0.5, 1.5) : Array<double>();
    return *this;
  }

  std::vector<Leaf> leaves() const {
    return {{"qkv", {B, T, 3 * C}, qkv, 3, 0.0, false},        // attention is the only reader of qkv
            {"scale", {parameter.size()}, parameter, 1, 1.0},  // a sum of signed terms that nearly cancel
            {"q_gain", {q_gain.size()}, q_gain},
            {"k_gain", {k_gain.size()}, k_gain}};
  }

  // The factors on P as the kernels draw them, (B, H, T, T).
  Array<double> mask() const {
    if (noise.p == 0.0) return {};
    const Index stride = (T + 15) / 16 * 16;
    Array<double> all(B * H * T * T);
    std::vector<float> row(static_cast<std::size_t>(T));
    for (Index i = 0; i < B * H * T; ++i) {
      dropout_mask(noise.p, noise.key, i * stride, T, row.data());
      for (Index j = 0; j < T; ++j) all[i * T + j] = static_cast<double>(row[static_cast<std::size_t>(j)]);
    }
    return all;
  }

  auto formula() const {
    const reference::Attention a{B, T, C, H, norm, scale, eps, fixed_scale, cap};
    return [a, m = mask()](const auto& x) { return reference::attention(a, x[0], x[1], x[2], x[3], m); };
  }

  Array<double> scores() const {
    Array<double> S;
    reference::attention<double>({B, T, C, H, norm, scale, eps, fixed_scale, cap}, qkv, parameter, q_gain, k_gain, {},
                                 &S);
    return S;
  }

  AttentionSpec spec(std::deque<Param>& p) const {
    const auto present = [](Param& param) { return param.size() > 0 ? &param : nullptr; };
    return {H, norm, scale, eps, fixed_scale, cap, present(p[1]), present(p[2]), present(p[3])};
  }

  auto op() const {
    return [this](Tape& tape, std::deque<Param>& p) -> Var& { return attention(tape, p[0].var, spec(p), noise); };
  }
};

enum Gradient : std::size_t { qkv_gradient, scale_gradient, q_gain_gradient, k_gain_gradient };

// y and all gradients of sum of R y, the same R for all cases of a size.
inline Array<double> loss_weights(const AttentionCase& a) { return normals(a.B * a.T * a.C, 99); }
inline Result by_formula(const AttentionCase& a) { return oracle(a.leaves(), loss_weights(a), a.formula()); }
inline Result by_kernels(const AttentionCase& a) { return run(a.leaves(), loss_weights(a), a.op()); }

// A statement about attention holds for the formula to double rounding and for the kernels to float32 rounding.
template <class Statement>
void for_both(Statement statement) {
  {
    INFO("formula");
    statement(by_formula, 1e-12);
  }
  INFO("kernels");
  statement(by_kernels, 4e-6);
}

inline constexpr QkNorm all_norms[] = {QkNorm::none, QkNorm::l2, QkNorm::rms, QkNorm::rms_full, QkNorm::layernorm};
inline constexpr LogitScale all_scales[] = {LogitScale::inverse_sqrt, LogitScale::temperature, LogitScale::learned,
                                            LogitScale::fixed};

// The attention kinds of the design, as norm and scale.
struct Kind {
  const char* name;
  QkNorm norm;
  LogitScale scale;
  bool gains;
  double cap = 0.0;
};
inline constexpr Kind kinds[] = {
    {"standard", QkNorm::none, LogitScale::inverse_sqrt, false},
    {"standard_temperature", QkNorm::none, LogitScale::temperature, false},
    {"softcap", QkNorm::none, LogitScale::inverse_sqrt, false, 1.5},  // small enough to be felt
    {"qk_norm", QkNorm::l2, LogitScale::learned, false},
    {"qk_norm_fixed", QkNorm::l2, LogitScale::fixed, false},
    {"qk_rmsnorm", QkNorm::rms, LogitScale::inverse_sqrt, true},
    {"qk_rmsnorm_full", QkNorm::rms_full, LogitScale::inverse_sqrt, true},
    {"qk_layernorm", QkNorm::layernorm, LogitScale::inverse_sqrt, true},
};

inline AttentionCase case_of(const Kind& kind, Index B, Index T, Index C, Index H, double deviation = 1.0) {
  AttentionCase a;
  a.B = B, a.T = T, a.C = C, a.H = H, a.norm = kind.norm, a.scale = kind.scale, a.cap = kind.cap;
  return a.fill(deviation, kind.gains);
}

// One small case for all statements about norms and scales. Without an epsilon they are exact.
inline AttentionCase make(QkNorm norm, LogitScale scale, double eps = 1e-30) {
  AttentionCase a;
  a.B = 2, a.T = 5, a.C = 8, a.H = 2, a.norm = norm, a.scale = scale, a.eps = eps;
  return a.fill();
}
inline constexpr double root_d = 2.0;  // sqrt(C / H) of make()

// Equal output and gradients of q, k and v.
inline void check_same(const Result& a, const Result& b, double tolerance) {
  CHECK(difference(a.y, b.y) <= tolerance);
  CHECK(difference(a.gradients[qkv_gradient], b.gradients[qkv_gradient]) <= tolerance);
}

// What attention_stats sees of the kernels' scores.
inline AttentionStats stats_of(const AttentionCase& a) {
  Params params;
  const std::vector<Leaf> leaves = a.leaves();
  for (const Leaf& leaf : leaves) params.add(leaf.name, leaf.shape, false);
  params.allocate(false);
  for (std::size_t l = 0; l < leaves.size(); ++l)
    for (Index i = 0; i < leaves[l].value.size(); ++i)
      params.list()[l].value()[i] = static_cast<float>(leaves[l].value[i]);
  return attention_stats(params.list()[0].var.value, a.spec(params.list()));
}

}  // namespace qkgpt::test
