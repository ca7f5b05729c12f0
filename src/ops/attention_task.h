// One (sequence, head) of attention on the calling thread. The formulas stand in attention.cpp.
#pragma once
#include "ops/ops.h"
#include "ops/qk_rows.h"

namespace qkgpt {

struct AttentionShape {
  Index B, T, C, H, d;
  AttentionShape(const Shape& qkv, Index n_head) : B(qkv[0]), T(qkv[1]), C(qkv[2] / 3), H(n_head), d(C / n_head) {
    check(qkv.rank() == 3 && C * 3 == qkv[2] && d * H == C, "attention: shapes do not fit");
  }
};

float logit_scale(const AttentionSpec& spec, Index d);  // s

// P_ij = exp(S_ij - max) norm. The two are kept apart: their log-sum-exp, rounded, would lose the digits of P
// where scores are large (pytorch/pytorch#11752), and so P has the same bits on the way back.
struct RowSoftmax {
  float max, norm;
};

class AttentionTask {
 public:
  // `scratch` holds scratch_floats() for every thread.
  AttentionTask(const AttentionShape& a, const AttentionSpec& spec, const Dropout& noise, const float* qkv,
                const RowStats* stats, float scale, Index task, float* scratch, int thread);

  static Index scratch_floats(const AttentionShape& a);

  // Writes this head's columns of y (B, T, C) and what makes P (T, T) of S.
  void forward(float* y, RowSoftmax* softmax);

  // Writes dq^, dk~ and dv into this head's columns of dqkv (B, T, 3C); returns sum_i q^_i . u_i.
  double backward(const float* y, const float* dy, const RowSoftmax* softmax, float* dqkv);

 private:
  const float* q_row(Index i) const { return qkv_ + i * 3 * a_.C; }  // k and v stand C and 2 C further
  void prepare_rows();                                               // fills q_ and k_
  float q_hat(Index i, Index c) const;
  void scores(Index first, Index last);  // S rows [first, last) into scores_
  void mask_row(Index i, Index n, float* mask) const;

  const AttentionShape& a_;
  const AttentionSpec& spec_;
  const Dropout& noise_;
  const float* qkv_;  // row 0 of this sequence, at this head's q
  const RowStats* stats_;
  float scale_;
  Index task_, head_, stride_;   // stride_: floats per row of S, T rounded up
  float *q_, *k_;                // q~ and k~ (T, d)
  float *panels_a_, *panels_b_;  // operands rearranged for the matrix kernel
  float *panels_c_, *panels_d_, *panels_e_;
  float *scores_, *dscores_;  // a block of rows of S, then P; of dP, then dS
  float *u_, *mask_;
};

}  // namespace qkgpt
