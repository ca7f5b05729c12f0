// One (sequence, head) of attention on the calling thread. The formulas stand in attention.cpp.
#pragma once
#include "kernels/gemm.h"
#include "ops/ops.h"
#include "ops/qk_rows.h"
#include "ops/softmax_row.h"

namespace qkgpt {

struct AttentionShape {
  Index B, T, C, H, d;
  AttentionShape(const Shape& qkv, Index n_head) : B(qkv[0]), T(qkv[1]), C(qkv[2] / 3), H(n_head), d(C / n_head) {
    check(qkv.rank() == 3 && C * 3 == qkv[2] && d * H == C, "attention: shapes do not fit");
  }
};

float logit_scale(const AttentionSpec& spec, Index d);  // s
LogitMap logit_map(const AttentionSpec& spec, Index d);

class AttentionTask {
 public:
  // `stats`: of the rows of q and k, (B, T, 2, groups) with a group per head, or one for rms_full; forward fills those
  // of its head, but for rms_full. `scratch` holds scratch_floats() for every thread.
  AttentionTask(const AttentionShape& a, const AttentionSpec& spec, const Dropout& noise, const float* qkv,
                RowStats* stats, LogitMap logits, Index task, float* scratch, int thread);

  static Index scratch_floats(const AttentionShape& a);

  // Writes this head's columns of y (B, T, C) and what makes P (T, T) of S.
  void forward(float* y, RowSoftmax* softmax);

  // Writes dq, dk (dq^, dk^ for rms_full, which needs all heads to go on) and dv into this head's columns of dqkv
  // (B, T, 3C), and the rows' share of the gradients of q's and k's gain into dgain (2, d), null without gains.
  // Returns sum_ij dS_ij z_ij.
  double backward(const float* y, const float* dy, const RowSoftmax* softmax, float* dqkv, float* dgain);

 private:
  const float* v() const { return qkv_ + 2 * a_.C; }
  void normalise(bool with_stats);
  void norm_backward(float* dq, float* dgain) const;
  void products(const float* rows, Index stride, Panels columns, Index first, Index last, float* to) const;
  const float* mask_row(Index i, Index n) const;

  const AttentionShape& a_;
  const AttentionSpec& spec_;
  const Dropout& noise_;
  const float* qkv_;  // row 0 of this sequence, at this head's q; k and v stand C and 2 C further
  RowStats* stats_;
  LogitMap logits_;
  Index task_, head_, stride_;  // stride_: floats per row of S, T rounded up
  const float *q_, *k_;         // q^ and k^ (T, d): in place where there is no normalisation
  Index row_;                   // floats from one of their rows to the next
  float* normalised_;
  float *panels_a_, *panels_b_, *panels_c_, *panels_d_, *panels_e_;  // operands rearranged for the matrix kernel
  float *scores_, *dscores_;                                         // a block of rows of z, then P; of dP, then dz
  float* mask_;
};

}  // namespace qkgpt
