#include "model/gpt.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/rng.h"
#include "base/signals.h"
#include "base/text.h"

namespace qkgpt {

Dropout Noise::at(Index layer, const char* site) const {
  if (p == 0.0) return {};
  return {p, Stream(seed, "dropout", step, micro_batch, layer, std::string_view(site)).key()};
}

namespace {

using LinearOp = Var& (*)(Tape&, Var&, Param&, Param*, Var*);

// residual + dropout(layer of x); the sums start from the residual where nothing stands between.
Var& onto(Tape& tape, Var& residual, LinearOp op, Var& x, const Linear& layer, const Dropout& noise) {
  if (!layer.bias && noise.p == 0.0) return op(tape, x, *layer.weight, nullptr, &residual);
  return add(tape, residual, dropout(tape, op(tape, x, *layer.weight, layer.bias, nullptr), noise));
}

// x (B, T, C) -> (B, 1, C), for tapes that do not record.
Var& last_rows(Tape& tape, const Var& x) {
  const Index B = x.shape()[0], T = x.shape()[1], C = x.shape()[2];
  Var& y = tape.make({B, 1, C});
  for (Index b = 0; b < B; ++b) std::copy_n(x.value.data + ((b + 1) * T - 1) * C, C, y.value.data + b * C);
  return y;
}

}  // namespace

Var& Block::operator()(Tape& tape, Var& x, const Noise& noise, const Probe& probe) const {
  Var& qkv = ln_1.into(tape, x, c_attn);
  if (probe) probe(layer, qkv.value, attention);
  return finish(tape, x, qkgpt::attention(tape, qkv, attention, noise.at(layer, "attention")), noise);
}

Var& Block::next(Tape& tape, Var& x, std::span<KeyValueCache* const> caches, Index queries) const {
  Var& qkv = ln_1.into(tape, x, c_attn);
  Var& y = attention_cached(tape, qkv, attention, layer, caches, queries);
  return finish(tape, queries < x.shape()[1] ? last_rows(tape, x) : x, y, {});
}

Var& Block::finish(Tape& tape, Var& x, Var& y, const Noise& noise) const {
  Var& middle = onto(tape, x, linear, y, attn_c_proj, noise.at(layer, "attn.c_proj"));
  Var& hidden = ln_2.into(tape, middle, c_fc);
  return onto(tape, middle, gelu_linear, hidden, mlp_c_proj, noise.at(layer, "mlp.c_proj"));
}

Gpt::Gpt(const Config& config, Index vocab_size) : config_(config), vocab_size_(vocab_size) {
  const Index V = vocab_size, C = config.n_embd, T = config.block_size, d = C / config.n_head;
  const auto linear_layer = [&](const std::string& name, Index out, Index in) {
    Param* weight = &params_.add(name + ".weight", {out, in}, true);
    return Linear{weight, config.bias ? &params_.add(name + ".bias", {out}, false) : nullptr};
  };
  const auto norm_layer = [&](const std::string& name) {
    Param* weight = &params_.add(name + ".weight", {C}, false);
    return LayerNorm{weight, config.bias ? &params_.add(name + ".bias", {C}, false) : nullptr};
  };
  wte_ = &params_.add("transformer.wte.weight", {V, C}, true);
  wpe_ = &params_.add("transformer.wpe.weight", {T, C}, true);
  const AttentionRow& kind = row(config.attention);
  for (Index i = 0; i < config.n_layer; ++i) {
    const std::string name = cat("transformer.h.", i, ".");
    Block b{};
    b.layer = i;
    b.ln_1 = norm_layer(name + "ln_1");
    b.c_attn = linear_layer(name + "attn.c_attn", 3 * C, C);
    b.attn_c_proj = linear_layer(name + "attn.c_proj", C, C);
    b.attention = {.n_head = config.n_head, .norm = kind.norm, .scale = kind.scale, .eps = config.qk_norm_eps};
    if (kind.scale == LogitScale::learned) {
      b.attention.scale_param = &params_.add(name + "attn.qk_scale", {1}, false);
      b.attention.scale_param->lr_mult = config.qk_scale_lr_mult;
    }
    if (kind.scale == LogitScale::temperature)
      b.attention.scale_param = &params_.add(name + "attn.temperature", {1}, false);
    if (kind.cap) b.attention.softcap = config.softcap;
    if (kind.scale == LogitScale::fixed) b.attention.fixed_scale = qk_scale_init(config);
    if (kind.gains) {
      const Index m = kind.norm == QkNorm::rms_full ? C : d;
      b.attention.q_gain = &params_.add(name + "attn.q_norm.weight", {m}, false);
      b.attention.k_gain = &params_.add(name + "attn.k_norm.weight", {m}, false);
    }
    b.ln_2 = norm_layer(name + "ln_2");
    b.c_fc = linear_layer(name + "mlp.c_fc", 4 * C, C);
    b.mlp_c_proj = linear_layer(name + "mlp.c_proj", C, 4 * C);
    blocks_.push_back(b);
  }
  ln_f_ = norm_layer("transformer.ln_f");
}

void Gpt::initialise() {
  const double layers = static_cast<double>(config_.n_layer);
  for (Param& p : params_.list()) {
    stop_if_asked();
    float* x = p.value();
    if (p.name.ends_with(".attn.qk_scale")) {
      x[0] = static_cast<float>(qk_scale_init(config_));
    } else if (p.shape.rank() == 2) {
      const double std = p.name.ends_with("c_proj.weight") ? 0.02 / std::sqrt(2.0 * layers) : 0.02;
      const Stream stream(config_.seed, "init", std::string_view(p.name));
      for (Index i = 0; i < p.size(); ++i)
        x[i] = static_cast<float>(std * stream.normal(static_cast<std::uint64_t>(i)));
    } else {  // biases 0; LayerNorm gains, q/k gains and temperature 1
      std::fill_n(x, p.size(), p.name.ends_with(".bias") ? 0.0f : 1.0f);
    }
    p.changed();
  }
}

Var& Gpt::logits(Tape& tape, const std::int32_t* tokens, Index batch, Index time, const Noise& noise,
                 const Probe& probe, const Whole& whole) const {
  const auto whole_from = [&](const Param* first) {
    if (whole) tape.on_return([&whole, first] { whole(*first); });
  };
  whole_from(wte_);  // with the embedding, whose step is the last on the way back
  Var* x = &dropout(tape, embedding(tape, tokens, batch, time, *wte_, *wpe_), noise.at(config_.n_layer, "embedding"));
  for (const Block& block : blocks_) {
    whole_from(block.ln_1.weight);
    x = &block(tape, *x, noise, probe);
  }
  whole_from(ln_f_.weight);
  return ln_f_.into(tape, *x, {wte_, nullptr});
}

KeyValueCache Gpt::cache() const {
  return {config_.n_layer, config_.n_head, config_.n_embd / config_.n_head, config_.block_size};
}

Var& Gpt::next_logits(Tape& tape, const std::int32_t* tokens, Index time,
                      std::span<KeyValueCache* const> caches) const {
  const Index batch = static_cast<Index>(caches.size());
  Var* x = &embedding(tape, tokens, batch, time, *wte_, *wpe_, caches[0]->length());
  for (const Block& block : blocks_)  // of the last layer only the last row is asked for
    x = &block.next(tape, *x, caches, &block == &blocks_.back() ? 1 : time);
  for (KeyValueCache* cache : caches) cache->advance(time);
  return ln_f_.into(tape, *x, {wte_, nullptr});
}

Var& Gpt::loss(Tape& tape, const std::int32_t* tokens, const std::int32_t* targets, Index batch, Index time,
               const Noise& noise, double* row_losses, const Whole& whole) const {
  return cross_entropy(tape, logits(tape, tokens, batch, time, noise, {}, whole), targets, row_losses);
}

bool is_shared(const Param& param) {
  for (const char* own : {".attn.qk_scale", ".attn.temperature", ".attn.q_norm.weight", ".attn.k_norm.weight"})
    if (param.name.ends_with(own)) return false;
  return true;
}

double flops_per_token(const Config& config, Index n) {
  return 6.0 * static_cast<double>(n) + 12.0 * static_cast<double>(config.n_layer) *
                                            static_cast<double>(config.n_embd) * static_cast<double>(config.block_size);
}

double memory_estimate(const Config& config, Index vocab_size, bool training) {
  const auto L = static_cast<double>(config.n_layer), C = static_cast<double>(config.n_embd);
  const auto T = static_cast<double>(config.block_size), B = static_cast<double>(config.batch_size);
  const auto V = static_cast<double>(vocab_size);
  const double matrices = (V + 12.0 * L * C) * C, params = matrices + T * C + (2.0 * L + 1.0) * C;
  const double rows = B * T;
  // per row and layer: qkv, attention, c_fc (4 C), two sums; the two projections where they do not go into the sums
  // at once, and what dropout makes of them
  const double apart = config.dropout > 0 ? 4.0 : config.bias ? 2.0 : 0.0;
  const double activations = rows * (L * (10.0 + apart) * C + (config.dropout > 0 ? 2.0 : 1.0) * C + V);
  // alive at once in backward: gradients of the sums and of c_fc (4 C), and GELU made again (4 C)
  const double backward = training ? rows * (10.0 * C + V) : 0.0;
  // sums of micro-batches that wait for others (train/gradient_sum.h)
  const double sums = training ? std::countr_zero(static_cast<std::uint64_t>(config.gradient_accumulation_steps)) : 0.0;
  return 4.0 * (params * (training ? 4.0 + sums : 1.0) + matrices * (training ? 2.0 : 1.0) + activations + backward);
}

}  // namespace qkgpt
