// The config in writing: config.json, help, JSON Schema.
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "config/config.h"
#include "config/json_reader.h"

namespace qkgpt {
namespace {

std::string text_of(Index x) { return std::to_string(x); }
std::string text_of(std::uint64_t x) { return std::to_string(x); }
std::string text_of(double x) { return shortest(x); }
std::string text_of(bool x) { return x ? "true" : "false"; }
std::string text_of(const std::string& x) { return json_string(x); }
std::string text_of(Attention x) { return json_string(row(x).name); }
template <class T>
std::string text_of(const std::optional<T>& x) {
  return x ? text_of(*x) : "null";
}

using Json = nlohmann::ordered_json;

// What a schema says of one type.
void describe(Json& key, const Field& field, Index Config::*) {
  key["type"] = "integer";
  key["minimum"] = static_cast<Index>(field.low);
  key["maximum"] = static_cast<Index>(field.high);
}
void describe(Json& key, const Field&, std::uint64_t Config::*) {
  key["type"] = "integer";
  key["minimum"] = 0;
  key["maximum"] = UINT64_MAX;
}
void describe(Json& key, const Field& field, double Config::*) {
  key["type"] = "number";
  key[field.low_open ? "exclusiveMinimum" : "minimum"] = field.low;
  key[field.high_open ? "exclusiveMaximum" : "maximum"] = field.high;
}
void describe(Json& key, const Field&, bool Config::*) { key["type"] = "boolean"; }
void describe(Json& key, const Field&, std::string Config::*) { key["type"] = "string"; }
void describe(Json& key, const Field&, Attention Config::*) {
  for (const AttentionRow& r : attention_table) key["enum"].push_back(r.name);
}
template <class T>
void describe(Json& key, const Field& field, std::optional<T> Config::*) {
  describe(key, field, static_cast<T Config::*>(nullptr));
  key["type"] = Json::array({key["type"], "null"});
}

bool is_portable(const Field& field) {
  const std::string_view name = field.name;
  return name != "out_dir" && name != "threads";
}

}  // namespace

std::string value_text(const Config& config, const Field& field) {
  return std::visit([&](auto member) { return text_of(config.*member); }, field.member);
}

std::string to_json(const Config& config, bool portable) {
  std::string text;
  for (const Field& field : fields())
    if (!portable || is_portable(field))
      text += cat(text.empty() ? "{" : ",", "\n  \"", field.name, "\": ", value_text(config, field));
  return text + "\n}\n";
}

std::vector<std::string> changed_keys(const Config& a, const Config& b) {
  std::vector<std::string> names;
  for (const Field& field : fields())
    if (value_text(a, field) != value_text(b, field)) names.push_back(field.name);
  return names;
}

std::string help_text() {
  const Config defaults;
  std::string text = "Keys, in a config file as \"KEY\": VALUE or here as --KEY=VALUE; shown with their defaults:\n";
  for (const Field& field : fields()) {
    std::string value = value_text(defaults, field);
    if (value == "\"\"") value = "PATH";
    if (value.front() == '"') value = value.substr(1, value.size() - 2);
    std::string line = cat("  --", field.name, "=", value);
    line.resize(std::max<std::size_t>(line.size() + 2, 36), ' ');
    const bool kind = field.member == Member(&Config::attention);
    text += cat(line, kind ? "one of the kinds below" : expected_text(field),
                field.member == Member(&Config::data) ? " (train needs one)" : "", "\n      ", field.meaning, "\n");
  }
  text += "\nKinds of attention:\n";
  for (const AttentionRow& r : attention_table) {
    std::string name = cat("  ", r.name);
    name.resize(std::max<std::size_t>(name.size() + 2, 24), ' ');
    text += cat(name, r.meaning, "\n");
  }
  return text;
}

std::string json_schema() {
  const Config defaults;
  Json schema;
  schema["$schema"] = "http://json-schema.org/draft-07/schema#";
  schema["title"] = "qkgpt config";
  schema["type"] = "object";
  schema["allowComments"] = true;  // for editors
  schema["additionalProperties"] = false;
  Json& properties = schema["properties"];
  properties["$schema"]["type"] = "string";
  for (const Field& field : fields()) {
    Json& key = properties[field.name];
    key["description"] = field.meaning;
    std::visit([&](auto member) { describe(key, field, member); }, field.member);
    const std::string value = value_text(defaults, field);
    if (value != "\"\"") key["default"] = Json::parse(value);
  }
  return schema.dump(2) + "\n";
}

}  // namespace qkgpt
