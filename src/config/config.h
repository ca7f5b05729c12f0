// The config: one flat set of keys, described once in fields(). Parser, --help, JSON Schema and the saved
// config.json all read that table. To add a key: a member here and its line in fields() (config.cpp).
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/attention_kind.h"
#include "base/check.h"

namespace qkgpt {

enum class Attention {  // spelled as in JSON
  standard,
  standard_temperature,
  softcap,
  qk_norm,
  qk_norm_fixed,
  qk_rmsnorm,
  qk_rmsnorm_full,
  qk_layernorm
};

// One row per attention kind, in the order of the enum.
struct AttentionRow {
  Attention kind;
  const char* name;
  QkNorm norm;
  LogitScale scale;
  bool gains;           // learned q_norm.weight and k_norm.weight
  bool cap;             // scores pass through softcap * tanh(score / softcap)
  const char* meaning;  // one line for --help
};

inline constexpr std::array attention_table = {
    AttentionRow{Attention::standard, "standard", QkNorm::none, LogitScale::inverse_sqrt, false, false,
                 "q.k / sqrt(d), as GPT-2 and nanoGPT"},
    AttentionRow{Attention::standard_temperature, "standard_temperature", QkNorm::none, LogitScale::temperature, false,
                 false, "a * q.k / sqrt(d), a learned from 1: a control"},
    AttentionRow{Attention::softcap, "softcap", QkNorm::none, LogitScale::inverse_sqrt, false, true,
                 "tau * tanh(q.k / (tau sqrt(d))), tau = softcap (Gemma 2)"},
    AttentionRow{Attention::qk_norm, "qk_norm", QkNorm::l2, LogitScale::learned, false, false,
                 "g * q.k with q and k L2-normalised per head, g learned (Henry et al. 2020)"},
    AttentionRow{Attention::qk_norm_fixed, "qk_norm_fixed", QkNorm::l2, LogitScale::fixed, false, false,
                 "as qk_norm with g = qk_scale_init for ever"},
    AttentionRow{Attention::qk_rmsnorm, "qk_rmsnorm", QkNorm::rms, LogitScale::inverse_sqrt, true, false,
                 "q.k / sqrt(d) with q and k RMS-normalised per head, learned gains (Qwen3, dots.llm1)"},
    AttentionRow{Attention::qk_rmsnorm_full, "qk_rmsnorm_full", QkNorm::rms_full, LogitScale::inverse_sqrt, true, false,
                 "the same over all channels, before the heads are split (OLMoE, OLMo 2)"},
    AttentionRow{Attention::qk_layernorm, "qk_layernorm", QkNorm::layernorm, LogitScale::inverse_sqrt, true, false,
                 "q.k / sqrt(d) with LayerNorm without bias on q and k per head, learned gains (ViT-22B)"},
};

static_assert([] {
  for (std::size_t i = 0; i < attention_table.size(); ++i)
    if (attention_table[i].kind != static_cast<Attention>(i)) return false;
  return true;
}());

constexpr const AttentionRow& row(Attention kind) { return attention_table[static_cast<std::size_t>(kind)]; }

struct Config {
  // text and files
  std::string data;
  std::string out_dir;  // empty: named after the config files
  double val_fraction = 0.1;
  std::optional<std::string> init_from;
  // machine
  std::uint64_t seed = 1337;
  Index threads = 0;
  // model
  Index n_layer = 4, n_head = 4, n_embd = 128, block_size = 64;
  double dropout = 0.0;
  bool bias = false;
  Attention attention = Attention::standard;
  std::optional<double> qk_scale_init;
  double qk_scale_lr_mult = 1.0;
  double qk_norm_eps = 1e-6;
  double softcap = 50.0;
  // optimisation
  Index batch_size = 12, gradient_accumulation_steps = 1, max_iters = 2000;
  double learning_rate = 1e-3;
  std::optional<double> min_lr;
  bool decay_lr = true;
  Index warmup_iters = 100;
  std::optional<Index> lr_decay_iters;
  double weight_decay = 0.1, beta1 = 0.9, beta2 = 0.99, grad_clip = 1.0;
  // evaluation, logging, saving
  Index eval_interval = 250, eval_iters = 20, log_interval = 10;
  std::optional<Index> checkpoint_interval;
  Index keep_interval = 0;
  bool attention_stats = true;
  Index sample_length = 0, patience = 0;
};

using Member = std::variant<Index Config::*, std::uint64_t Config::*, double Config::*, bool Config::*,
                            std::string Config::*, Attention Config::*, std::optional<Index> Config::*,
                            std::optional<double> Config::*, std::optional<std::string> Config::*>;

struct Field {
  const char* name;
  Member member;
  double low, high;          // accepted range of a number (unused for other types), ends included unless open
  bool low_open, high_open;  // the end itself is not accepted
  const char* meaning;       // one line, also what null means
};

const std::vector<Field>& fields();

inline constexpr double count_limit = 2147483647.0;  // 2^31 - 1
inline constexpr double real_limit = 1e30;           // finite in float32, with room for a product

// What a key or range accepts, for messages and help: "an integer >= 1 or null", ">= 0 and < 1". An upper end
// of count_limit or real_limit only guards the arithmetic and is said when `seen` exceeds it.
std::string expected_text(const Field& field, double seen = 0);
std::string range_text(double low, double high, bool low_open = false, bool high_open = false, double seen = 0);

// "--KEY=VALUE" from the command line, KEY already with underscores.
struct Override {
  std::string key, value;
};

// Defaults < files from left to right < overrides. All faults are collected into one usage Error, a line
// each: "FILE:LINE:COLUMN: key: what is wrong; what would be right" ("--key: ..." for the command line).
// Rules that join keys (n_embd divisible by n_head, ...) are checked on the result.
// `base` takes the place of the defaults: a resumed run layers what is given over its checkpoint's config.
// With `partial`, a missing `data` is no fault.
Config load_config(const std::vector<std::string>& files, const std::vector<Override>& overrides,
                   const Config& base = {}, bool partial = false);

// The same from JSON text; `name` stands in messages. For the config inside a checkpoint.
Config parse_config(std::string_view json, const std::string& name, bool partial = false);

// Every key, in table order, as a JSON object ending in a newline; reads back as the same config.
// With `portable`, without out_dir and threads: what a checkpoint stores.
std::string to_json(const Config& config, bool portable = false);

// JSON text of one key's value, for messages ("null", "0.001", "\"qk_norm\"").
std::string value_text(const Config& config, const Field& field);

// Names of the keys whose values differ, in table order.
std::vector<std::string> changed_keys(const Config& a, const Config& b);

std::string help_text();    // every key: name, type, default, range, meaning
std::string json_schema();  // configs/schema.json

// Resolved values of keys whose null means "derived".
double min_lr(const Config& config);         // null: learning_rate / 10
Index lr_decay_iters(const Config& config);  // null: max_iters
double qk_scale_init(const Config& config);  // null: log2(T^2 - T), T = block_size (Henry et al.)

}  // namespace qkgpt
