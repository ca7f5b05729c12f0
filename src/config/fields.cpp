// The table of keys.
#include <cmath>

#include "base/text.h"
#include "config/config.h"

namespace qkgpt {

const std::vector<Field>& fields() {
  // Sizes end where a product of a few of them still fits 63 bits. qk_norm_eps starts above the smallest
  // normal float32, so that neither it nor its reciprocal is lost there.
  constexpr double size_limit = 1048576, least = 1.2e-38;
  constexpr bool open = true, shut = false;
  const auto plain = [](const char* name, Member member, const char* meaning) {
    return Field{name, member, 0, 0, shut, shut, meaning};
  };
  const auto count = [](const char* name, Member member, double low, double high, const char* meaning) {
    return Field{name, member, low, high, shut, shut, meaning};
  };
  const auto real = [](const char* name, Member member, const char* meaning) {
    return Field{name, member, 0, real_limit, shut, shut, meaning};
  };
  const auto part = [](const char* name, Member member, const char* meaning) {
    return Field{name, member, 0, 1, shut, open, meaning};
  };
  static const std::vector<Field> table = {
      plain("data", &Config::data, "path of the text, UTF-8"),
      plain("out_dir", &Config::out_dir,
            "run directory; without one runs/ and the names of the config files joined by +"),
      part("val_fraction", &Config::val_fraction, "last part of the text, kept for validation; 0: none"),
      plain("init_from", &Config::init_from, "checkpoint whose weights start this run; null: fresh weights"),
      count("seed", &Config::seed, 0, 0x1p64, "of every random number, 64 bits"),
      count("threads", &Config::threads, 0, 4096, "0: what OpenMP gives; n: so many, up to the number of cores"),

      count("n_layer", &Config::n_layer, 1, 10000, "blocks"),
      count("n_head", &Config::n_head, 1, size_limit, "attention heads of a block"),
      count("n_embd", &Config::n_embd, 1, size_limit, "channels, a multiple of n_head"),
      count("block_size", &Config::block_size, 1, size_limit, "characters the model sees at once"),
      part("dropout", &Config::dropout, "on embeddings, attention weights and both residual branches"),
      plain("bias", &Config::bias, "biases in linear layers and LayerNorms"),
      plain("attention", &Config::attention, "how scores are made from q and k; see below"),
      real("qk_scale_init", &Config::qk_scale_init, "start (or fixed value) of g; null: log2(T^2 - T), T = block_size"),
      real("qk_scale_lr_mult", &Config::qk_scale_lr_mult, "learning rate of g, as a multiple"),
      Field{"qk_norm_eps", &Config::qk_norm_eps, least, real_limit, shut, shut,
            "keeps the normalisation of q and k from dividing by zero"},
      Field{"softcap", &Config::softcap, 1e-30, real_limit, shut, shut,
            "bound of the attention scores where the kind has one"},

      count("batch_size", &Config::batch_size, 1, size_limit, "windows in a micro-batch"),
      count("gradient_accumulation_steps", &Config::gradient_accumulation_steps, 1, size_limit,
            "micro-batches in an update"),
      count("max_iters", &Config::max_iters, 0, count_limit, "updates; 0: evaluate once and save"),
      real("learning_rate", &Config::learning_rate, "highest learning rate"),
      real("min_lr", &Config::min_lr, "learning rate at lr_decay_iters; null: learning_rate / 10"),
      plain("decay_lr", &Config::decay_lr, "warm-up and cosine decay; false: learning_rate throughout"),
      count("warmup_iters", &Config::warmup_iters, 0, count_limit, "updates of linear warm-up"),
      count("lr_decay_iters", &Config::lr_decay_iters, 0, count_limit, "where the decay ends; null: max_iters"),
      real("weight_decay", &Config::weight_decay, "AdamW's, on matrices and embeddings only"),
      part("beta1", &Config::beta1, "AdamW: memory of the gradient"),
      part("beta2", &Config::beta2, "AdamW: memory of its square"),
      real("grad_clip", &Config::grad_clip, "largest norm of the gradient; 0: not clipped"),

      count("eval_interval", &Config::eval_interval, 0, count_limit,
            "updates between evaluations; 0: only at start and end"),
      count("eval_iters", &Config::eval_iters, 1, count_limit, "batches in an evaluation"),
      count("log_interval", &Config::log_interval, 0, count_limit, "updates between train rows; 0: none"),
      count("checkpoint_interval", &Config::checkpoint_interval, 1, count_limit,
            "updates between saves; null: at evaluations only"),
      count("keep_interval", &Config::keep_interval, 0, count_limit,
            "updates between checkpoints kept for ever; 0: none"),
      plain("attention_stats", &Config::attention_stats, "attention diagnostics at each evaluation"),
      count("sample_length", &Config::sample_length, 0, count_limit, "characters sampled at each evaluation; 0: none"),
      count("patience", &Config::patience, 0, count_limit,
            "stop after so many evaluations without a new best; 0: never"),
  };
  return table;
}

std::string range_text(double low, double high, bool low_open, bool high_open, double seen) {
  std::string text = cat(low_open ? "> " : ">= ", low);
  if ((high != count_limit && high < real_limit) || seen > high) text += cat(" and ", high_open ? "< " : "<= ", high);
  return text;
}

namespace {

std::string noun(Index Config::*) { return "an integer "; }
std::string noun(std::uint64_t Config::*) { return "an integer from 0 to 18446744073709551615"; }
std::string noun(double Config::*) { return "a number "; }
std::string noun(bool Config::*) { return "true or false"; }
std::string noun(std::string Config::*) { return "a string"; }
std::string noun(Attention Config::*) {
  std::string text = "one of ";
  for (const AttentionRow& r : attention_table)
    text += cat(r.kind == attention_table[0].kind ? "\"" : ", \"", r.name, '"');
  return text;
}
template <class T>
std::string noun(std::optional<T> Config::*) {
  return noun(static_cast<T Config::*>(nullptr));
}

template <class T>
constexpr bool is_optional(std::optional<T> Config::*) {
  return true;
}
template <class T>
constexpr bool is_optional(T Config::*) {
  return false;
}

}  // namespace

std::string expected_text(const Field& field, double seen) {
  std::string text = std::visit([](auto member) { return noun(member); }, field.member);
  if (text.back() == ' ') text += range_text(field.low, field.high, field.low_open, field.high_open, seen);
  if (std::visit([](auto member) { return is_optional(member); }, field.member)) text += " or null";
  return text;
}

double min_lr(const Config& config) { return config.min_lr.value_or(config.learning_rate / 10); }

Index lr_decay_iters(const Config& config) { return config.lr_decay_iters.value_or(config.max_iters); }

double qk_scale_init(const Config& config) {
  const double T = static_cast<double>(config.block_size);
  return config.qk_scale_init.value_or(std::log2(T * T - T));
}

}  // namespace qkgpt
