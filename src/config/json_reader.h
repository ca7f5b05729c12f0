// Strict reading of one flat JSON object, with the place of every key and value. Comments are allowed.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace qkgpt {

struct JsonValue {
  enum class Kind { null, boolean, number, string, nested, invalid };
  Kind kind = Kind::null;
  bool truth = false;     // of a boolean
  double real = 0.0;      // of a number; infinite when it does not fit a double
  bool whole = false;     // a number that is an integer: exactly magnitude, or
  bool negative = false;  // -magnitude (1e3 is one, reals above 2^53 are not)
  std::uint64_t magnitude = 0;
  std::string text;    // of a string, UTF-8
  std::string source;  // as written, shortened, for messages
};

struct JsonEntry {
  std::string key;
  JsonValue value;
  std::size_t key_at, value_at;  // byte offsets in the text
};

struct JsonFault {
  std::size_t at;
  std::string what;
  bool foreign;  // the text is no JSON object at all
};

// Duplicate keys are kept. Reading goes on after a word that is no JSON (NaN, True, .5: kind invalid) and
// after a number that fits no double; at any other fault it ends, with the entries so far.
struct JsonObject {
  std::vector<JsonEntry> entries;
  std::optional<JsonFault> fault;
};

JsonObject read_object(std::string_view text);

// One number, boolean or null as typed on a command line: also True, False, None, ".001" and "1.".
// Whatever is none of them, white space included, comes back as a string.
JsonValue read_word(const std::string& word);

JsonValue string_value(const std::string& text);

// "LINE:COLUMN" of a byte offset, both from 1; columns count characters.
std::string place(std::string_view text, std::size_t at);

// A JSON string literal; bytes that are not UTF-8 are replaced.
std::string json_string(const std::string& text);

bool is_utf8(const std::string& text);

}  // namespace qkgpt
