// Causal multi-head attention (Vaswani et al., arXiv 1706.03762), with q and k normalised or not:
//
//   q^ = norm(q)   k^ = norm(k)   z_ij = q^_i . k^_j   S = s z   P_i = softmax(S_ij over j <= i)   y_i = sum_j P_ij v_j
//
//   standard   norm(x) = x        s = 1 / sqrt(d)
//   qk_norm    norm(x) = x / |x|  s = g, learned: S = g cos(q, k), never beyond g    (others: ops/qk_rows.h)
//   softcap    norm(x) = x        S = tau tanh(s z / tau)
//
// Backward, given dy. P~ = P, or P * mask / (1 - p) with dropout:
//   dv_j = sum_i P~_ij dy_i      dP_ij = mask_ij dy_i . v_j      dS_ij = P_ij (dP_ij - D_i),  D_i = dy_i . y_i
//   dz = s dS                    ds = sum_ij dS_ij z_ij          (softcap: dz = s dS (1 - (S/tau)^2))
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

// The way back for rms_full: dq^ and dk^ in dqkv become dq and dk. dgain: (shards, 2, C), or null without gains.
void full_norm_backward(const AttentionShape& a, const AttentionSpec& spec, const float* qkv, const RowStats* stats,
                        float* dqkv, float* dgain) {
  const Index rows = a.B * a.T;
  parallel_for(shards(rows), 1, [&](Index begin, Index end, int) {
    for (Index s = begin; s < end; ++s) {
      float* sums = dgain ? dgain + s * 2 * a.C : nullptr;
      if (sums) std::fill_n(sums, 2 * a.C, 0.0f);
      for (Index i = s * shard_rows * 2; i < std::min((s + 1) * shard_rows, rows) * 2; ++i) {
        const Index at = i / 2 * 3 * a.C + i % 2 * a.C;
        const Param* gain = i % 2 ? spec.k_gain : spec.q_gain;
        row_backward(spec.norm, qkv + at, stats[i], a.C, static_cast<float>(spec.eps), gain ? gain->value() : nullptr,
                     dqkv + at, sums ? sums + i % 2 * a.C : nullptr);
      }
    }
  });
}

// What forward leaves for backward.
struct Record {
  Var &qkv, &y;
  AttentionShape a;
  AttentionSpec spec;
  Dropout noise;
  LogitMap logits;
  RowStats* stats;      // (B, T, 2, groups)
  RowSoftmax* softmax;  // (B, H, T)
  Index tasks, grain, scratch_size;
};

void attention_backward(Tape& tape, const Record& r) {
  const AttentionSpec& spec = r.spec;
  const Grad dqkv = tape.grad(r.qkv);
  check(!dqkv.add, "attention must be the only reader of qkv");
  const bool full = spec.norm == QkNorm::rms_full;
  const Index m = full ? r.a.C : r.a.d, parts = spec.q_gain ? (full ? shards(r.a.B * r.a.T) : r.tasks) : 0;
  float* scratch = tape.borrow(r.scratch_size);
  float* dgain = spec.q_gain ? tape.borrow(parts * 2 * m) : nullptr;  // (parts, 2, m)
  auto* dscale = reinterpret_cast<double*>(tape.borrow(2 * r.tasks));
  parallel_for(r.tasks, r.grain, [&](Index begin, Index end, int thread) {
    for (Index t = begin; t < end; ++t)
      dscale[t] = AttentionTask(r.a, spec, r.noise, r.qkv.value.data, r.stats, r.logits, t, scratch, thread)
                      .backward(r.y.value.data, r.y.grad, r.softmax + t * r.a.T, dqkv.data,
                                dgain && !full ? dgain + t * 2 * m : nullptr);
  });
  if (full) full_norm_backward(r.a, spec, r.qkv.value.data, r.stats, dqkv.data, dgain);
  for (Index which = 0; dgain && which < 2; ++which) {
    const Grad dg = tape.grad((which ? spec.k_gain : spec.q_gain)->var);
    add_shards(dgain + which * m, parts, 2 * m, m, dg.add, dg.data);
  }
  if (spec.scale_param) {
    const Grad dg = tape.grad(spec.scale_param->var);
    double sum = 0.0;
    for (Index t = 0; t < r.tasks; ++t) sum += dscale[t];
    if (spec.scale == LogitScale::temperature) sum /= std::sqrt(static_cast<double>(r.a.d));
    dg.data[0] = static_cast<float>(dg.add ? static_cast<double>(dg.data[0]) + sum : sum);
  }
  tape.give_back(reinterpret_cast<float*>(dscale), 2 * r.tasks);
  if (dgain) tape.give_back(dgain, parts * 2 * m);
  tape.give_back(scratch, r.scratch_size);
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

LogitMap logit_map(const AttentionSpec& spec, Index d) {
  return {logit_scale(spec, d), static_cast<float>(spec.softcap)};
}

Var& attention(Tape& tape, Var& qkv, const AttentionSpec& spec, const Dropout& noise) {
  const AttentionShape a(qkv.shape(), spec.n_head);
  check(!spec.q_gain == !spec.k_gain && (spec.norm != QkNorm::none || !spec.q_gain),
        "gains belong to a normalisation, of q and of k");
  Var& y = tape.make({a.B, a.T, a.C});
  const bool full = spec.norm == QkNorm::rms_full;
  const Index tasks = a.B * a.H;
  const Record r = {.qkv = qkv,
                    .y = y,
                    .a = a,
                    .spec = spec,
                    .noise = noise,
                    .logits = logit_map(spec, a.d),
                    .stats = reinterpret_cast<RowStats*>(tape.keep(2 * 2 * a.B * a.T * (full ? 1 : a.H))),
                    .softmax = reinterpret_cast<RowSoftmax*>(tape.keep(2 * tasks * a.T)),
                    .tasks = tasks,
                    .grain = 1 + 200000 / (a.T * a.T * a.d),
                    .scratch_size = thread_count() * AttentionTask::scratch_floats(a)};
  if (full) full_row_stats(a, spec, qkv.value.data, r.stats);
  float* scratch = tape.borrow(r.scratch_size);
  parallel_for(tasks, r.grain, [&](Index begin, Index end, int thread) {
    for (Index t = begin; t < end; ++t)
      AttentionTask(a, spec, noise, qkv.value.data, r.stats, r.logits, t, scratch, thread)
          .forward(y.value.data, r.softmax + t * a.T);
  });
  tape.give_back(scratch, r.scratch_size);
  tape.on_backward("attention", y, [&tape, r] { attention_backward(tape, r); });
  return y;
}

}  // namespace qkgpt
