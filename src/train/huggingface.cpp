#include "train/huggingface.h"

#include <algorithm>
#include <deque>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/text.h"

namespace qkgpt {
namespace {

using Json = nlohmann::json;

constexpr const char* origin_key = "qkgpt.step";  // in the metadata of exported weights and of nothing else

Json model_config(const Config& c, Index vocab_size) {
  return {{"model_type", "gpt2"},
          {"architectures", Json::array({"GPT2LMHeadModel"})},
          {"vocab_size", vocab_size},
          {"n_positions", c.block_size},
          {"n_ctx", c.block_size},  // what older converters read
          {"n_embd", c.n_embd},
          {"n_layer", c.n_layer},
          {"n_head", c.n_head},
          {"n_inner", nullptr},             // 4 n_embd
          {"activation_function", "gelu"},  // exact erf; their usual gelu_new is the tanh form
          {"layer_norm_epsilon", 1e-5},
          {"initializer_range", 0.02},
          {"resid_pdrop", c.dropout},
          {"embd_pdrop", c.dropout},
          {"attn_pdrop", c.dropout},
          {"scale_attn_weights", true},
          {"scale_attn_by_inverse_layer_idx", false},
          {"reorder_and_upcast_attn", false},
          {"bos_token_id", nullptr},  // their usual 50256 lies outside the vocabulary
          {"eos_token_id", nullptr},
          {"tie_word_embeddings", true},
          {"torch_dtype", "float32"},
          {"use_cache", true}};
}

// Byte pair encoding without any pair: one token a character. Without the decoder blanks would come between them.
Json tokenizer_model(const Tokenizer& tokenizer) {
  Json vocabulary = Json::object();
  for (std::int32_t id = 0; id < tokenizer.size(); ++id) vocabulary[tokenizer.decode({&id, 1})] = id;
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", Json::array()},
          {"normalizer", nullptr},
          {"pre_tokenizer", nullptr},
          {"post_processor", nullptr},
          {"decoder", {{"type", "Fuse"}}},
          {"model",
           {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", nullptr},
            {"continuing_subword_prefix", nullptr},
            {"end_of_word_suffix", nullptr},
            {"fuse_unk", false},
            {"byte_fallback", false},
            {"vocab", vocabulary},
            {"merges", Json::array()}}}};
}

Json tokenizer_config(const Config& c) {
  return {{"tokenizer_class", "PreTrainedTokenizerFast"},
          {"clean_up_tokenization_spaces", false},
          {"model_max_length", c.block_size}};
}

// The weights of GPT-2's own layout. Owns what had to be made new.
struct Weights {
  std::vector<TensorEntry> entries;
  std::deque<std::vector<float>> made;  // a deque: references stay good

  explicit Weights(const Params& params) {
    for (const Param& p : params.list()) {
      const bool embedding = p.name.ends_with("wte.weight") || p.name.ends_with("wpe.weight");
      if (p.shape.rank() == 2 && !embedding)
        add_transposed(p);
      else
        add(p.name, p.shape.rank() == 2 ? std::vector{p.shape[0], p.shape[1]} : std::vector{p.shape[0]},
            {p.value(), static_cast<std::size_t>(p.size())});
      const std::string bias = p.name.substr(0, p.name.size() - std::string_view("weight").size()) + "bias";
      const bool has_bias = embedding || p.name.ends_with(".bias") ||
                            std::any_of(params.list().begin(), params.list().end(),
                                        [&](const Param& other) { return other.name == bias; });
      if (!has_bias) add(bias, {p.shape[0]}, made.emplace_back(static_cast<std::size_t>(p.shape[0])));
    }
  }

 private:
  void add(const std::string& name, std::vector<Index> shape, std::span<const float> data) {
    entries.push_back({name, DType::F32, std::move(shape), std::as_bytes(data)});
  }

  // Their Conv1D multiplies by W (in, out).
  void add_transposed(const Param& p) {
    const Index rows = p.shape[0], columns = p.shape[1];
    std::vector<float>& w = made.emplace_back(static_cast<std::size_t>(p.size()));
    for (Index r = 0; r < rows; ++r)
      for (Index c = 0; c < columns; ++c) w[static_cast<std::size_t>(c * rows + r)] = p.value()[r * columns + c];
    add(p.name, {columns, rows}, w);
  }
};

void write_json(const std::string& path, const Json& json) {
  const std::string text = json.dump(2) + "\n";
  const Bytes piece = as_bytes(text);
  write_durably(path, {&piece, 1});
}

bool is_export(const std::string& directory) {
  try {
    return SafetensorsFile::read(directory + "/model.safetensors", false).metadata().count(origin_key) > 0;
  } catch (const Error&) {
    return false;
  }
}

bool holds_files(const std::string& directory) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(directory, error))
    if (!entry.path().filename().string().starts_with(".")) return true;
  return false;
}

}  // namespace

std::string beyond_gpt2(Attention kind) {
  const AttentionRow& r = row(kind);
  if (r.norm != QkNorm::none) return "normalised q and k";
  if (r.cap) return "a cap on the scores";
  if (r.scale != LogitScale::inverse_sqrt) return "a learned scale of the scores";
  return "";
}

void require_export_place(const std::string& path, bool overwrite) {
  if (!checkpoint_files(path).empty())
    throw Error(ErrorKind::usage, cat(path, ": holds a run; give an export a directory of its own"));
  if (!overwrite && holds_files(path) && !is_export(path))
    throw Error(ErrorKind::usage, cat(path,
                                      ": is not empty and no earlier export; give another directory, or "
                                      "--overwrite to replace the files of the same names there"));
}

void write_huggingface(const RunDirectory& directory, const Gpt& gpt, const Checkpoint& origin) {
  check(beyond_gpt2(gpt.config().attention).empty(), "what is exported is GPT-2");
  const Weights weights(gpt.params());
  write_safetensors(directory.file("model.safetensors"), weights.entries,
                    {{"format", "pt"}, {origin_key, cat(origin.state.step)}, {"qkgpt.text_sha256", origin.text_sha256}},
                    false);
  write_json(directory.file("tokenizer.json"), tokenizer_model(origin.tokenizer));
  write_json(directory.file("tokenizer_config.json"), tokenizer_config(gpt.config()));
  write_json(directory.file("config.json"), model_config(gpt.config(), gpt.vocab_size()));
}

}  // namespace qkgpt
