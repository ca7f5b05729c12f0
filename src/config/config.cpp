// From files and command line to a Config, with every fault on the way.
#include "config/config.h"

#include <cerrno>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <map>
#include <system_error>

#include "base/text.h"
#include "config/json_reader.h"

namespace qkgpt {
namespace {

using Kind = JsonValue::Kind;

std::string misfit(const JsonValue& value, const char* noun, const Field& field) {
  return cat(value.source, " is not ", value.kind == Kind::invalid ? "JSON" : noun, "; expected ",
             expected_text(field));
}

std::string out_of_range(const JsonValue& value, const Field& field) {
  return cat(value.source, " is out of range; expected ", expected_text(field, value.real));
}

bool within(double x, const Field& field) {
  if (!(field.low_open ? x > field.low : x >= field.low) || !(x <= field.high)) return false;
  return !field.high_open || static_cast<double>(static_cast<float>(x)) < field.high;  // where it will be used
}

// assign(): puts a value into a member, or says what is wrong with it ("" if nothing).
std::string assign(std::uint64_t& slot, const Field& field, const JsonValue& value) {
  if (value.kind != Kind::number || std::trunc(value.real) != value.real) return misfit(value, "an integer", field);
  if (!value.whole || (value.negative && value.magnitude > 0)) return out_of_range(value, field);
  slot = value.magnitude;
  return "";
}

std::string assign(Index& slot, const Field& field, const JsonValue& value) {
  if (value.kind != Kind::number || std::trunc(value.real) != value.real) return misfit(value, "an integer", field);
  if (!value.whole || !within(value.real, field)) return out_of_range(value, field);
  slot = static_cast<Index>(value.real);  // exact: the range of every count lies within 2^53
  return "";
}

std::string assign(double& slot, const Field& field, const JsonValue& value) {
  if (value.kind != Kind::number) return misfit(value, "a number", field);
  if (!within(value.real, field)) return out_of_range(value, field);
  slot = value.real + 0.0;  // no negative zero
  return "";
}

std::string assign(bool& slot, const Field& field, const JsonValue& value) {
  if (value.kind != Kind::boolean) return misfit(value, "a truth value", field);
  slot = value.truth;
  return "";
}

std::string assign(std::string& slot, const Field& field, const JsonValue& value) {
  if (value.kind != Kind::string) return misfit(value, "a string", field);
  if (!is_utf8(value.text)) return cat(value.source, " is not UTF-8; expected a name in UTF-8");
  if (value.text.find('\0') != std::string::npos) return cat(value.source, " holds a NUL; expected a path");
  slot = value.text;
  return "";
}

std::string assign(Attention& slot, const Field& field, const JsonValue& value) {
  if (value.kind != Kind::string) return misfit(value, "a string", field);
  std::vector<std::string> names;
  for (const AttentionRow& r : attention_table) {
    names.push_back(r.name);
    if (value.text != r.name) continue;
    slot = r.kind;
    return "";
  }
  const std::string near = nearest(value.text, names);
  return cat(value.source, " is unknown; expected ", expected_text(field),
             near.empty() ? "" : cat(" (nearest: \"", near, "\")"));
}

template <class T>
std::string assign(std::optional<T>& slot, const Field& field, const JsonValue& value) {
  T inner{};
  if (value.kind == Kind::null) {
    slot = std::nullopt;
    return "";
  }
  std::string wrong = assign(inner, field, value);
  if constexpr (std::is_same_v<T, std::string>)
    if (wrong.empty() && inner.empty()) wrong = "\"\" is empty; expected a path or null";
  if (wrong.empty()) slot = inner;
  return wrong;
}

// A value on the command line. Strings are taken as they are, but for null where null is possible.
JsonValue typed(const Field& field, const std::string& text) {
  const bool nullable = std::holds_alternative<std::optional<std::string> Config::*>(field.member);
  const bool is_text = nullable || std::holds_alternative<std::string Config::*>(field.member) ||
                       std::holds_alternative<Attention Config::*>(field.member);
  if (is_text && !(nullable && (text == "null" || text == "None"))) return string_value(text);
  return read_word(text);
}

const Field* find_field(std::string_view name) {
  for (const Field& field : fields())
    if (name == field.name) return &field;
  return nullptr;
}

std::string nearest_key(std::string_view name) {
  std::vector<std::string> names;
  for (const Field& field : fields()) names.push_back(field.name);
  return nearest(name, names);
}

std::string head_counts(Index n_embd) {
  std::string text;
  int shown = 0;
  for (Index n = 1; n <= n_embd; ++n) {
    if (n_embd % n != 0) continue;
    if (++shown > 12) return text + ", ...";
    text += cat(text.empty() ? "" : ", ", n);
  }
  return text;
}

class Loader {
 public:
  explicit Loader(const Config& base = {}, bool partial = false) : config_(base), partial_(partial) {}
  void read_file(const std::string& path);
  void read_text(std::string_view text, const std::string& name, const char* hint = "");
  void read_override(const Override& given);
  void name_out_dir(const std::vector<std::string>& files);
  Config finish();

 private:
  // Where a key was last set.
  struct Origin {
    std::string subject;  // "FILE:LINE:COLUMN: " or "--"; the key follows
    std::size_t order;
    bool faulty;
  };

  void give_up(const std::string& fault) { whole_ = false, faults_.push_back(fault); }
  void set(const Field& field, const JsonValue& value, const std::string& subject);
  void rule(std::initializer_list<const char*> keys, bool holds, const std::string& otherwise);

  Config config_;
  bool partial_;
  std::vector<std::string> faults_;
  std::map<std::string, Origin> origins_;
  std::size_t order_ = 0;
  bool whole_ = true;  // every file was read to its end
};

void Loader::set(const Field& field, const JsonValue& value, const std::string& subject) {
  const std::string wrong =
      std::visit([&](auto member) { return assign(config_.*member, field, value); }, field.member);
  if (!wrong.empty()) faults_.push_back(cat(subject, field.name, ": ", wrong));
  origins_[field.name] = {subject, ++order_, !wrong.empty()};
}

void Loader::read_text(std::string_view text, const std::string& name, const char* hint) {
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  const JsonObject object = read_object(text);
  const auto subject = [&](std::size_t at) { return cat(name, ":", place(text, at), ": "); };
  std::map<std::string, std::size_t> seen;
  for (const JsonEntry& entry : object.entries) {
    if (entry.key == "$schema") continue;
    const auto [first, fresh] = seen.emplace(entry.key, entry.key_at);
    const Field* field = find_field(entry.key);
    if (!fresh) {
      faults_.push_back(
          cat(subject(entry.key_at), entry.key, ": given twice, first at ", place(text, first->second), "; keep one"));
    } else if (field == nullptr) {
      const std::string near = nearest_key(entry.key), literal = json_string(entry.key);
      faults_.push_back(cat(subject(entry.key_at), literal.substr(1, literal.size() - 2), ": unknown key; ",
                            near.empty() ? "see qkgpt train --help" : cat("did you mean ", near, "?")));
    } else {
      set(*field, entry.value, subject(entry.value_at));
    }
  }
  if (object.fault) give_up(cat(subject(object.fault->at), object.fault->what, object.fault->foreign ? hint : ""));
}

void Loader::read_file(const std::string& path) {
  constexpr std::size_t limit = 1 << 20;
  const char* hint = " (qkgpt train --resume=FILE goes on from a checkpoint)";
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    give_up(cat(path, ": is a directory; expected a config file (qkgpt train --resume=", path, " goes on with a run)"));
    return;
  }
  errno = 0;
  std::ifstream in(path, std::ios::binary);
  std::string text(limit + 1, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!in.is_open() || in.bad()) {
    const std::string reason = std::generic_category().message(errno == 0 ? EIO : errno);
    const std::string near = nearest_key(path.substr(0, path.find('=')));
    const bool stray = path.find('=') != std::string::npos && !near.empty();
    give_up(cat(path, ": cannot be read (", reason, "); expected a config file",
                stray ? cat(" (did you mean --", near, path.substr(path.find('=')), "?)") : hint));
    return;
  }
  text.resize(static_cast<std::size_t>(in.gcount()));
  if (text.size() > limit) {
    give_up(cat(path, ": larger than 1 MiB; expected a config file", hint));
    return;
  }
  read_text(text, path, hint);
}

void Loader::read_override(const Override& given) {
  if (const Field* field = find_field(given.key)) {
    set(*field, typed(*field, given.value), "--");
    return;
  }
  const std::string near = nearest_key(given.key);
  faults_.push_back(cat("--", given.key, ": unknown key; ",
                        near.empty() ? "see qkgpt train --help" : cat("did you mean --", near, "?")));
}

void Loader::name_out_dir(const std::vector<std::string>& files) {
  if (!config_.out_dir.empty()) return;
  std::string name;
  for (const std::string& file : files)
    name += cat(name.empty() ? "" : "+", std::filesystem::path(file).stem().string());
  if (!is_utf8(name))
    faults_.push_back(cat("out_dir: ", json_string(name), " is not UTF-8; name the run directory with --out_dir=PATH"));
  config_.out_dir = cat("runs/", name.empty() ? "default" : name);
}

// A rule that joins several keys: said of the one that was set last, and only if each of them is known and
// sound.
void Loader::rule(std::initializer_list<const char*> keys, bool holds, const std::string& otherwise) {
  if (holds || !whole_) return;
  std::string subject = cat(*keys.begin(), ": ");
  std::size_t latest = 0;
  for (const char* key : keys) {
    const auto origin = origins_.find(key);
    if (origin == origins_.end()) continue;
    if (origin->second.faulty) return;
    if (origin->second.order > latest) subject = cat(origin->second.subject, key, ": ");
    latest = std::max(latest, origin->second.order);
  }
  faults_.push_back(subject + otherwise);
}

Config Loader::finish() {
  const Config& c = config_;
  rule({"data"}, partial_ || !c.data.empty(), "no text given; expected --data=FILE, or \"data\": \"FILE\" in a config");
  rule({"n_embd", "n_head"}, c.n_embd % c.n_head == 0,
       cat("n_embd ", c.n_embd, " is not a multiple of n_head ", c.n_head,
           "; head counts that fit: ", head_counts(c.n_embd)));
  const LogitScale scale = row(c.attention).scale;
  const bool needs_scale = scale == LogitScale::learned || scale == LogitScale::fixed;
  rule({"qk_scale_init", "block_size", "attention"}, !needs_scale || c.qk_scale_init || c.block_size > 1,
       "qk_scale_init null means log2(T^2 - T), which has no value for block_size 1; expected a number");
  if (c.decay_lr)
    rule({"min_lr", "learning_rate"}, min_lr(c) <= c.learning_rate,
         cat("min_lr ", min_lr(c), " is above learning_rate ", c.learning_rate, "; expected min_lr <= learning_rate"));
  double tokens = 1;
  for (const Index n : {c.max_iters, c.gradient_accumulation_steps, c.batch_size, c.block_size})
    tokens *= static_cast<double>(n);
  rule({"max_iters", "gradient_accumulation_steps", "batch_size", "block_size"}, tokens < 0x1p62,
       cat("max_iters x gradient_accumulation_steps x batch_size x block_size is ", tokens,
           " tokens; expected fewer than 4e18"));
  if (!faults_.empty()) {
    std::string message;
    for (const std::string& fault : faults_) message += cat(message.empty() ? "" : "\n", fault);
    throw Error(ErrorKind::usage, message);
  }
  return config_;
}

}  // namespace

Config load_config(const std::vector<std::string>& files, const std::vector<Override>& overrides, const Config& base,
                   bool partial) {
  Loader loader(base, partial);
  for (const std::string& file : files) loader.read_file(file);
  for (const Override& given : overrides) loader.read_override(given);
  loader.name_out_dir(files);
  return loader.finish();
}

Config parse_config(std::string_view json, const std::string& name, bool partial) {
  Loader loader({}, partial);
  loader.read_text(json, name);
  return loader.finish();
}

}  // namespace qkgpt
