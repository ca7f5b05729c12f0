// The operations of a GPT. Each computes now and, on a recording tape, leaves the step that goes back. Shapes:
// B batch, T time, C channels, H heads, d = C / H head size, V vocabulary, N = B T rows. The results live on
// the tape until its reset(). One .cpp per op: formula, forward kernel, backward kernel, op.
#pragma once
#include <cstdint>
#include <span>

#include "autograd/param.h"
#include "autograd/tape.h"
#include "base/attention_kind.h"
#include "ops/kv_cache.h"

namespace qkgpt {

// Where the zeros of a dropout come from: element e of the tensor at this place is kept when the 32-bit draw e
// of the stream `key` says so. p = 0: nothing is dropped.
struct Dropout {
  double p = 0.0;
  std::uint64_t key = 0;
};

// y (B, T, C) = wte[tokens] + wpe[position ... position + T-1]; tokens (B, T), every id below V.
Var& embedding(Tape& tape, const std::int32_t* tokens, Index batch, Index time, Param& wte, Param& wpe,
               Index position = 0);

// y (..., O) = x (..., I) W^T + b with W (O, I) and b (O); b may be null. Without a bias the sums may start from a
// `residual` (..., O) instead: y = residual + x W^T in one pass.
Var& linear(Tape& tape, Var& x, Param& weight, Param* bias, Var* residual = nullptr);

// y = layernorm(x) W^T + b with layernorm(x) = (x - mean) / sqrt(var + eps) * gain + shift over the last dimension;
// shift and b may be null. layernorm(x) is never stored.
Var& layernorm_linear(Tape& tape, Var& x, Param& gain, Param* shift, Param& weight, Param* bias);

// y = gelu(x) W^T + b or + residual, gelu(x) = x Phi(x) with Phi the distribution function of the standard normal
// (exact erf, not the tanh form). gelu(x) is never stored.
Var& gelu_linear(Tape& tape, Var& x, Param& weight, Param* bias, Var* residual = nullptr);

// y = x + branch.
Var& add(Tape& tape, Var& x, Var& branch);

// y = x / (1 - p) where kept, 0 where dropped; with p = 0 it is x itself.
Var& dropout(Tape& tape, Var& x, const Dropout& noise);

struct AttentionSpec {
  Index n_head = 1;
  QkNorm norm = QkNorm::none;
  LogitScale scale = LogitScale::inverse_sqrt;
  double eps = 1e-6;             // of the normalisation
  double fixed_scale = 1.0;      // g of LogitScale::fixed
  double softcap = 0.0;          // tau; 0: scores are not capped
  Param* scale_param = nullptr;  // g (1) of LogitScale::learned, a (1) of LogitScale::temperature
  Param* q_gain = nullptr;       // (d), or (C) for QkNorm::rms_full; null: ones
  Param* k_gain = nullptr;
};

// Causal multi-head attention: qkv (B, T, 3C), rows q, k, v side by side -> y (B, T, C).
Var& attention(Tape& tape, Var& qkv, const AttentionSpec& spec, const Dropout& noise);

// The same for the newest T positions of sequences whose earlier keys and values stand in `caches`, one for each
// sequence: puts those of qkv (B, T, 3C) behind them and returns the last `queries` rows of y (B, queries, C), bit by
// bit those of attention() over the whole sequences. For tapes that do not record. All sequences have the same
// length; KeyValueCache::advance() is left to the caller, when all layers are done.
Var& attention_cached(Tape& tape, Var& qkv, const AttentionSpec& spec, Index layer,
                      std::span<KeyValueCache* const> caches, Index queries);

// What one layer's attention does, a value per head (`metrics.jsonl`, kind "attention"). Sums in double.
struct AttentionStats {
  std::vector<double> logit_max, entropy, p_max, q_norm, k_norm;
  double scale = 0.0;  // g, temperature or 1 / sqrt(d)
};
AttentionStats attention_stats(const Tensor& qkv, const AttentionSpec& spec);

// loss (1) = mean over rows of -log softmax(logits (N, V))[target]. row_losses (N) may be null.
Var& cross_entropy(Tape& tape, Var& logits, const std::int32_t* targets, double* row_losses = nullptr);

}  // namespace qkgpt
