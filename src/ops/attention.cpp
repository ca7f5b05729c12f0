// Causal multi-head attention (Vaswani et al., arXiv 1706.03762), with q and k normalised or not:
//
//   q^ = norm(q)   k^ = norm(k)   z_ij = q^_i . k^_j   S = s z   P_i = softmax(S_ij over j <= i)   y_i = sum_j P_ij v_j
//
//   standard   norm(x) = x        s = 1 / sqrt(d)
//   qk_norm    norm(x) = x / |x|  s = g, learned: S = g cos(q, k), never beyond g    (others: ops/qk_rows.h)
//
// Backward, given dy. P~ = P, or P * mask / (1 - p) with dropout:
//   dv_j = sum_i P~_ij dy_i      dP_ij = mask_ij dy_i . v_j      dS_ij = P_ij (dP_ij - D_i),  D_i = dy_i . y_i
//   dz = s dS                    ds = sum_ij dS_ij z_ij
//   dq^_i = sum_j dz_ij k^_j     dk^_j = sum_i dz_ij q^_i
// then dq^ and dk^ go back through norm, row by row. For l2: dx = (t - y (t . y)) / |x|, the part of t across y:
// a longer x changes nothing, so the gradient has no component along it.
//
// One task is one (sequence, head). It works on strips of query rows against the keys up to the strip's last row, so
// the upper triangle is neither computed nor stored; of P only two numbers per row are kept.
#include "kernels/parallel.h"
#include "ops/attention_task.h"

namespace qkgpt {
namespace {

// Statistics of whole rows of q and k, for rms_full; those of a head are its task's work.
void full_row_stats(const AttentionShape& a, const AttentionSpec& spec, const float* qkv, RowStats* stats) {
  parallel_for(a.B * a.T, 1 + 10000 / a.C, [&](Index begin, Index end, int) {
    for (Index i = begin * 2; i < end * 2; ++i)  // even: q of row i / 2, odd: k
      stats[i] = row_stats(spec.norm, qkv + i / 2 * 3 * a.C + i % 2 * a.C, a.C, static_cast<float>(spec.eps));
  });
}

// dq^ and dk^ in dqkv become dq and dk; gradients of the gains.
void norm_backward(Tape& tape, const AttentionShape& a, const AttentionSpec& spec, const float* qkv,
                   const RowStats* stats, float* dqkv) {
  const Index groups = spec.norm == QkNorm::rms_full ? 1 : a.H, m = a.C / groups, rows = a.B * a.T;
  const Index n = shards(rows);
  auto* gains = reinterpret_cast<double*>(tape.borrow(2 * n * 2 * m));  // [shard][q, k][m]
  parallel_for(n, 1, [&](Index begin, Index end, int) {
    for (Index s = begin; s < end; ++s) {
      double* dgain = gains + s * 2 * m;
      std::fill_n(dgain, 2 * m, 0.0);
      for (Index i = s * shard_rows * 2; i < std::min((s + 1) * shard_rows, rows) * 2; ++i)
        for (Index h = 0; h < groups; ++h) {
          const Index at = i / 2 * 3 * a.C + i % 2 * a.C + h * m;
          const Param* gain = i % 2 ? spec.k_gain : spec.q_gain;
          row_backward(spec.norm, qkv + at, stats[i * groups + h], m, static_cast<float>(spec.eps),
                       gain ? gain->value() : nullptr, dqkv + at, gain ? dgain + i % 2 * m : nullptr);
        }
    }
  });
  for (Index which = 0; which < 2; ++which)
    if (Param* gain = which ? spec.k_gain : spec.q_gain) {
      const Grad dg = tape.grad(gain->var);
      for (Index c = 0; c < m; ++c) {
        double sum = dg.add ? static_cast<double>(dg.data[c]) : 0.0;
        for (Index s = 0; s < n; ++s) sum += gains[(2 * s + which) * m + c];
        dg.data[c] = static_cast<float>(sum);
      }
    }
  tape.give_back(reinterpret_cast<float*>(gains), 2 * n * 2 * m);
}

}  // namespace

float logit_scale(const AttentionSpec& spec, Index d) {
  const float inverse_sqrt = 1.0f / std::sqrt(static_cast<float>(d));
  switch (spec.scale) {
    case LogitScale::inverse_sqrt: return inverse_sqrt;
    case LogitScale::temperature: return spec.scale_param->value()[0] * inverse_sqrt;
    case LogitScale::learned: return spec.scale_param->value()[0];
    case LogitScale::fixed: return static_cast<float>(spec.fixed_scale);
  }
  return 0.0f;
}

Var& attention(Tape& tape, Var& qkv, const AttentionSpec& spec, const Dropout& noise) {
  const AttentionShape a(qkv.shape(), spec.n_head);
  check(spec.norm != QkNorm::none || (!spec.q_gain && !spec.k_gain), "gains belong to a normalisation");
  Var& y = tape.make({a.B, a.T, a.C});
  const bool full = spec.norm == QkNorm::rms_full;
  const Index tasks = a.B * a.H, groups = full ? 1 : a.H;
  auto* softmax = reinterpret_cast<RowSoftmax*>(tape.keep(2 * tasks * a.T));
  auto* stats = reinterpret_cast<RowStats*>(tape.keep(2 * 2 * a.B * a.T * groups));
  const float scale = logit_scale(spec, a.d);
  if (full) full_row_stats(a, spec, qkv.value.data, stats);

  const Index scratch_size = thread_count() * AttentionTask::scratch_floats(a);
  const Index grain = 1 + 200000 / (a.T * a.T * a.d);
  float* scratch = tape.borrow(scratch_size);
  parallel_for(tasks, grain, [&](Index begin, Index end, int thread) {
    for (Index t = begin; t < end; ++t)
      AttentionTask(a, spec, noise, qkv.value.data, stats, scale, t, scratch, thread)
          .forward(y.value.data, softmax + t * a.T);
  });
  tape.give_back(scratch, scratch_size);

  tape.on_backward("attention", y,
                   [&tape, &qkv, &y, a, spec, noise, scale, stats, softmax, tasks, grain, scratch_size] {
                     const Grad dqkv = tape.grad(qkv);
                     check(!dqkv.add, "attention must be the only reader of qkv");
                     float* work = tape.borrow(scratch_size);
                     auto* dscale = reinterpret_cast<double*>(tape.borrow(2 * tasks));
                     parallel_for(tasks, grain, [&](Index begin, Index end, int thread) {
                       for (Index t = begin; t < end; ++t)
                         dscale[t] = AttentionTask(a, spec, noise, qkv.value.data, stats, scale, t, work, thread)
                                         .backward(y.value.data, y.grad, softmax + t * a.T, dqkv.data);
                     });
                     if (spec.norm != QkNorm::none) norm_backward(tape, a, spec, qkv.value.data, stats, dqkv.data);
                     if (spec.scale_param) {
                       const Grad dg = tape.grad(spec.scale_param->var);
                       double sum = 0.0;
                       for (Index t = 0; t < tasks; ++t) sum += dscale[t];
                       if (spec.scale == LogitScale::temperature) sum /= std::sqrt(static_cast<double>(a.d));
                       dg.data[0] = static_cast<float>(dg.add ? static_cast<double>(dg.data[0]) + sum : sum);
                     }
                     tape.give_back(reinterpret_cast<float*>(dscale), 2 * tasks);
                     tape.give_back(work, scratch_size);
                   });
  return y;
}

}  // namespace qkgpt
