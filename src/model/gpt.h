// nanoGPT's GPT: token and position embeddings, n_layer pre-LayerNorm blocks, final LayerNorm, and a head tied to
// the token embedding (github.com/karpathy/nanoGPT, model.py). Parameter names and shapes are its state_dict's.
#pragma once
#include <functional>
#include <span>
#include <vector>

#include "autograd/param.h"
#include "config/config.h"
#include "ops/ops.h"

namespace qkgpt {

// Names the dropout masks of one micro-batch: by (seed, step, micro-batch, layer, site), never by draw order.
struct Noise {
  double p = 0.0;  // 0: no dropout (evaluation, sampling)
  std::uint64_t seed = 0;
  Index step = 0, micro_batch = 0;

  Dropout at(Index layer, const char* site) const;
};

struct Linear {
  Param *weight, *bias;
};

struct LayerNorm {
  Param *weight, *bias;
  // linear(norm(x))
  Var& into(Tape& tape, Var& x, const Linear& l) const {
    return layernorm_linear(tape, x, *weight, bias, *l.weight, l.bias);
  }
};

// Called with every layer's qkv during a forward pass that looks on.
using Probe = std::function<void(Index layer, const Tensor& qkv, const AttentionSpec& spec)>;

// Called on the way back through the model: the gradients of the parameters from `first` on in the list are whole.
using Whole = std::function<void(const Param& first)>;

struct Block {
  Index layer;
  LayerNorm ln_1, ln_2;
  Linear c_attn, attn_c_proj, c_fc, mlp_c_proj;
  AttentionSpec attention;
  Var& operator()(Tape& tape, Var& x, const Noise& noise, const Probe& probe) const;

  // For the newest positions x (B, T, C) of sequences: their last `queries` rows (B, queries, C), 1 or T of them.
  Var& next(Tape& tape, Var& x, std::span<KeyValueCache* const> caches, Index queries) const;

 private:
  // What follows attention's y, row by row; x is the residual stream before this block.
  Var& finish(Tape& tape, Var& x, Var& y, const Noise& noise) const;
};

class Gpt {
 public:
  // Names and shapes; takes no memory for weights yet.
  Gpt(const Config& config, Index vocab_size);
  Gpt(const Gpt&) = delete;
  Gpt& operator=(const Gpt&) = delete;

  // Memory for the weights, all zero, and for training also for gradients and AdamW's moments.
  void allocate(bool training) { params_.allocate(training); }

  // nanoGPT's start: N(0, 0.02), c_proj weights N(0, 0.02 / sqrt(2 n_layer)), LayerNorm gains 1, biases 0,
  // qk_scale as configured. Every tensor draws from a stream of its own, keyed by seed and name.
  void initialise();

  // tokens (B, T) -> logits (B, T, V). `whole` must live until backward has been here.
  Var& logits(Tape& tape, const std::int32_t* tokens, Index batch, Index time, const Noise& noise,
              const Probe& probe = {}, const Whole& whole = {}) const;

  // A cache that holds nothing yet and has room for block_size tokens.
  KeyValueCache cache() const;

  // Logits (B, V) of what follows sequences that go on by tokens (B, T), with the bits that logits() gives. `caches`,
  // one for each sequence and all of one length, hold what came before and then these tokens too. Several threads may
  // ask at once after the first time since the weights changed: that one rearranges the weights.
  Var& next_logits(Tape& tape, const std::int32_t* tokens, Index time, std::span<KeyValueCache* const> caches) const;

  // Mean cross-entropy of tokens (B, T) against targets (B, T); row_losses (B T) may be null.
  Var& loss(Tape& tape, const std::int32_t* tokens, const std::int32_t* targets, Index batch, Index time,
            const Noise& noise, double* row_losses = nullptr, const Whole& whole = {}) const;

  const Config& config() const { return config_; }
  Index vocab_size() const { return vocab_size_; }
  Params& params() { return params_; }
  const Params& params() const { return params_; }
  Index count_without_positions() const { return params_.count() - wpe_->size(); }

 private:
  Config config_;
  Index vocab_size_;
  Params params_;
  Param *wte_, *wpe_;
  std::vector<Block> blocks_;
  LayerNorm ln_f_;
};

// Whether every attention kind has a parameter of this name: these start equal under equal seeds.
bool is_shared(const Param& param);

// Bytes of memory that training (or only evaluating) takes, without the text: parameters with gradients and
// moments, rearranged weights, activations.
double memory_estimate(const Config& config, Index vocab_size, bool training);

// Floating-point operations per token of one update as nanoGPT counts them (PaLM, arXiv 2204.02311, appendix B):
// 6 N + 12 L H Q T with N the parameters without positions.
double flops_per_token(const Config& config, Index params_without_positions);

}  // namespace qkgpt
