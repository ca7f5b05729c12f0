#include "train/checkpoint.h"

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "base/file.h"
#include "base/text.h"
#include "base/utf8.h"
#include "ranks/ranks.h"

namespace qkgpt {
namespace {

constexpr const char* first_moment = "adamw.exp_avg.";
constexpr const char* second_moment = "adamw.exp_avg_sq.";

[[noreturn]] void refuse(const std::string& path, const std::string& what) {
  throw Error(ErrorKind::checkpoint, cat(path, ": ", what));
}

std::string encoded(char32_t c) {
  std::string utf8;
  append_utf8(utf8, c);
  return utf8;
}

// The one character a string holds, if it holds one.
std::optional<char32_t> single_code_point(const std::string& utf8) {
  std::vector<char32_t> characters;
  const auto fault = for_each_code_point(utf8, [&](char32_t c) { characters.push_back(c); });
  return fault || characters.size() != 1 ? std::nullopt : std::optional(characters[0]);
}

// step and the like, as stored
struct Numbers {
  std::int64_t step, best_step, evals_since_best, last_eval_step;
  double best_val_loss;
};

std::vector<TensorEntry> entries(const Gpt& gpt, const Numbers& n) {
  std::vector<TensorEntry> list;
  const auto add = [&list](std::string name, const Param& p, const float* data) {
    std::vector<Index> shape;
    for (int i = 0; i < p.shape.rank(); ++i) shape.push_back(p.shape[i]);
    list.push_back({std::move(name), DType::F32, std::move(shape),
                    std::as_bytes(std::span(data, static_cast<std::size_t>(p.size())))});
  };
  for (const Param& p : gpt.params().list()) {
    add(p.name, p, p.value());
    add(first_moment + p.name, p, p.exp_avg);
    add(second_moment + p.name, p, p.exp_avg_sq);
  }
  const auto number = [&list](const char* name, DType type, const auto& value) {
    list.push_back({name, type, {1}, std::as_bytes(std::span(&value, 1))});
  };
  number("qkgpt.step", DType::I64, n.step);
  number("qkgpt.best_step", DType::I64, n.best_step);
  number("qkgpt.best_val_loss", DType::F64, n.best_val_loss);
  number("qkgpt.evals_since_best", DType::I64, n.evals_since_best);
  number("qkgpt.last_eval_step", DType::I64, n.last_eval_step);
  return list;
}

Metadata metadata(const Config& config, const Tokenizer& tokenizer, const std::string& text_sha256) {
  nlohmann::json vocabulary = nlohmann::json::array();
  for (const char32_t c : tokenizer.vocabulary()) vocabulary.push_back(encoded(c));
  return {{"format", "pt"},
          {"qkgpt.format_version", checkpoint_version},
          {"qkgpt.config", to_json(config, true)},
          {"qkgpt.vocab", vocabulary.dump()},
          {"qkgpt.text_sha256", text_sha256}};
}

const std::string& metadata_value(const SafetensorsFile& file, const std::string& path, const char* key) {
  const auto found = file.metadata().find(key);
  if (found == file.metadata().end())
    refuse(path, cat("no \"", key,
                     "\" in its metadata; not a qkgpt checkpoint. A checkpoint holds config, "
                     "vocabulary, weights and the optimiser's state (train's init_from takes one too)"));
  return found->second;
}

void require_version(const SafetensorsFile& file, const std::string& path) {
  const std::string& version = metadata_value(file, path, "qkgpt.format_version");
  if (version == checkpoint_version) return;  // the first there is: no older one to read
  const bool number = !version.empty() && version.size() < 10 &&
                      version.find_first_not_of("0123456789") == std::string::npos && version[0] != '0';
  refuse(path, cat("checkpoint format version ", excerpt(version), ", this program reads '",
                   std::string_view(checkpoint_version), "'; ",
                   number ? "update qkgpt" : "no qkgpt wrote that: the file is damaged or foreign"));
}

Tokenizer read_vocabulary(const SafetensorsFile& file, const std::string& path) {
  const auto json = nlohmann::json::parse(metadata_value(file, path, "qkgpt.vocab"), nullptr, false);
  std::vector<char32_t> vocabulary;
  if (json.is_array())
    for (const auto& entry : json) {
      const auto* text = entry.get_ptr<const std::string*>();
      const auto c = text ? single_code_point(*text) : std::nullopt;
      if (!c) break;
      vocabulary.push_back(*c);
    }
  if (!json.is_array() || vocabulary.size() != json.size() || !is_vocabulary(vocabulary))
    refuse(path, "its vocabulary is not a sorted list of characters; the file is damaged or foreign");
  return Tokenizer(std::move(vocabulary));
}

template <class T>
T read_number(const SafetensorsFile& file, const std::string& path, const char* name, DType type) {
  const TensorEntry* entry = file.find(name);
  if (!entry || entry->dtype != type || entry->data.size() != sizeof(T))
    refuse(path, cat("no ", dtype_name(type), " [1] tensor \"", name, "\"; not a qkgpt checkpoint"));
  T value;
  std::memcpy(&value, entry->data.data(), sizeof(T));
  return value;
}

RunState read_state(const SafetensorsFile& file, const std::string& path) {
  RunState s;
  s.step = read_number<std::int64_t>(file, path, "qkgpt.step", DType::I64);
  s.best_step = read_number<std::int64_t>(file, path, "qkgpt.best_step", DType::I64);
  s.best_val_loss = read_number<double>(file, path, "qkgpt.best_val_loss", DType::F64);
  s.evals_since_best = read_number<std::int64_t>(file, path, "qkgpt.evals_since_best", DType::I64);
  s.last_eval_step = read_number<std::int64_t>(file, path, "qkgpt.last_eval_step", DType::I64);
  // The best may be of a later step: of updates that a crash undid and another learning rate did not make again.
  const bool ordered = s.step >= 0 && s.best_step >= -1 && s.last_eval_step >= -1 && s.last_eval_step <= s.step &&
                       s.evals_since_best >= 0;
  if (!ordered || !std::isfinite(s.best_val_loss))
    refuse(path, "its step numbers contradict each other; the file is damaged or foreign");
  return s;
}

// Numbers in the matrices of a model, in double: no overflow whatever the config says.
double least_weights(const Config& c, Index vocab_size) {
  const auto L = static_cast<double>(c.n_layer), C = static_cast<double>(c.n_embd);
  return (static_cast<double>(vocab_size) + static_cast<double>(c.block_size) + 12.0 * L * C) * C + 2.0 * L * C;
}

void check_tensor(const Checkpoint& c, const std::string& name, const Param& p) {
  const TensorEntry* entry = c.file.find(name);
  if (!entry) refuse(c.path, cat("tensor \"", name, "\" is missing; its config asks for it"));
  bool same = entry->dtype == DType::F32 && static_cast<int>(entry->shape.size()) == p.shape.rank();
  for (int i = 0; same && i < p.shape.rank(); ++i) same = entry->shape[static_cast<std::size_t>(i)] == p.shape[i];
  if (!same) refuse(c.path, cat("tensor \"", name, "\" has another type or shape than its config asks for"));
}

void copy_tensor(const Checkpoint& c, const std::string& name, float* to) {
  const Bytes data = c.file.find(name)->data;
  std::memcpy(to, data.data(), data.size());
}

Checkpoint checkpoint_of(SafetensorsFile file, const std::string& path) {
  require_version(file, path);
  Tokenizer tokenizer = read_vocabulary(file, path);
  std::string sha = metadata_value(file, path, "qkgpt.text_sha256");
  const RunState state = read_state(file, path);
  const std::string& json = metadata_value(file, path, "qkgpt.config");
  try {
    Config config = parse_config(json, path + " (config)");
    // before a model of that size is made: the weights it speaks of must be in the file
    if (least_weights(config, tokenizer.size()) * 4.0 > static_cast<double>(file.size()) ||
        config.n_layer > static_cast<Index>(file.tensors().size()))
      refuse(path, "its config speaks of more weights than the file has bytes; the file is damaged or foreign");
    Checkpoint c{path, std::move(file), std::move(config), std::move(tokenizer), std::move(sha), state};
    check_tensors(c, Gpt(c.config, c.tokenizer.size()));
    return c;
  } catch (const Error& e) {  // faults of a config are usage errors elsewhere
    throw Error(ErrorKind::checkpoint, e.what());
  }
}

}  // namespace

std::string checkpoint_path(const std::string& name, bool newest) {
  if (!exists(name))
    throw Error(ErrorKind::usage, cat(name, ": cannot be read: ", std::generic_category().message(errno),
                                      "; give a run directory or a checkpoint file"));
  if (!is_directory(name)) return name;
  const std::string best = name + "/best.safetensors", last = name + "/last.safetensors";
  if (!newest && exists(best)) return best;
  if (exists(last)) {
    if (!newest)
      std::fputs(cat("qkgpt: ", name, " has no best.safetensors; taking last.safetensors\n").c_str(), stderr);
    return last;
  }
  throw Error(ErrorKind::usage, cat(last, ": not found; give a run directory or a checkpoint file"));
}

Checkpoint read_checkpoint(const std::string& path) { return checkpoint_of(SafetensorsFile::read(path, true), path); }

void share(std::optional<Checkpoint>& checkpoint) {
  if (ranks::count() == 1) return;
  std::string bytes(checkpoint ? checkpoint->file.bytes() : std::string_view());
  std::string path = checkpoint ? checkpoint->path : std::string();
  ranks::share(bytes);
  ranks::share(path);
  if (!ranks::first() && !bytes.empty())
    checkpoint = checkpoint_of(SafetensorsFile::parse(std::move(bytes), path, true), path);
}

void save_checkpoint(const std::string& path, const Gpt& gpt, const Config& config, const Tokenizer& tokenizer,
                     const std::string& text_sha256, const RunState& s) {
  const Numbers n = {s.step, s.best_step, s.evals_since_best, s.last_eval_step, s.best_val_loss};
  write_safetensors(path, entries(gpt, n), metadata(config, tokenizer, text_sha256), true);
}

Index checkpoint_size(const Gpt& gpt, const Config& config, const Tokenizer& tokenizer,
                      const std::string& text_sha256) {
  return safetensors_size(entries(gpt, Numbers{}), metadata(config, tokenizer, text_sha256), true);
}

void check_tensors(const Checkpoint& c, const Gpt& gpt) {
  std::set<std::string> known;
  for (const Param& p : gpt.params().list())
    for (const std::string& name : {p.name, first_moment + p.name, second_moment + p.name}) {
      check_tensor(c, name, p);
      known.insert(name);
    }
  for (const TensorEntry& t : c.file.tensors())
    if (!t.name.starts_with("qkgpt.") && !known.count(t.name))
      refuse(c.path, cat("tensor \"", t.name, "\" is none that its config asks for"));
}

void load_weights(const Checkpoint& c, Gpt& gpt) {
  check_tensors(c, gpt);
  for (Param& p : gpt.params().list()) {
    copy_tensor(c, p.name, p.value());
    p.changed();
  }
}

void load_state(const Checkpoint& c, Gpt& gpt) {
  load_weights(c, gpt);
  for (Param& p : gpt.params().list()) {
    copy_tensor(c, first_moment + p.name, p.exp_avg);
    copy_tensor(c, second_moment + p.name, p.exp_avg_sq);
  }
}

bool weights_finite(const Gpt& gpt) {
  for (const Param& p : gpt.params().list())
    for (Index i = 0; i < p.size(); ++i)
      if (!std::isfinite(p.value()[i])) return false;
  return true;
}

}  // namespace qkgpt
