#include "config/json_reader.h"

#include <cmath>
#include <iterator>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "base/text.h"

namespace qkgpt {
namespace {

using Json = nlohmann::json;
using Kind = JsonValue::Kind;
constexpr std::size_t none = std::string_view::npos;

// Input for the parser that knows how many bytes it has given away.
struct CountingIterator {
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  const char* at;
  std::size_t* count;

  reference operator*() const { return *at; }
  CountingIterator& operator++() {
    ++at, ++*count;
    return *this;
  }
  CountingIterator operator++(int) {
    CountingIterator old = *this;
    ++*this;
    return old;
  }
  bool operator==(const CountingIterator& other) const { return at == other.at; }
  bool operator!=(const CountingIterator& other) const { return at != other.at; }
};

// First byte from `at` on that is neither white space nor comment.
std::size_t skip_blank(std::string_view text, std::size_t at) {
  while (at < text.size()) {
    if (text.substr(at, 2) == "//") {
      at = text.find_first_of("\r\n", at);
    } else if (text.substr(at, 2) == "/*") {
      const std::size_t end = text.find("*/", at + 2);
      at = end == none ? none : end + 2;
    } else if (std::string_view(" \t\r\n").find(text[at]) != none) {
      ++at;
    } else {
      return at;
    }
  }
  return text.size();
}

bool is_word(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '+' || c == '-' ||
         c == '.' || c == '_';
}

std::size_t word_end(std::string_view text, std::size_t at) {
  while (at < text.size() && is_word(text[at])) ++at;
  return at;
}

// The quote that opens the string whose closing quote is at `close`.
std::size_t opening_quote(std::string_view text, std::size_t close) {
  for (std::size_t at = close; at-- > 0;) {
    if (text[at] != '"') continue;
    std::size_t slashes = 0;
    while (slashes < at && text[at - 1 - slashes] == '\\') ++slashes;
    if (slashes % 2 == 0) return at;
  }
  return close;
}

std::string clipped(std::string_view text) {
  constexpr std::size_t longest = 60;
  if (text.size() <= longest) return std::string(text);
  std::size_t end = longest;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;  // not inside a character
  return cat(text.substr(0, end), "...");
}

// "[...] syntax error while parsing object key - unexpected '}'; expected string literal" -> what a user can
// mend.
std::string plain_words(std::string what) {
  const std::size_t dash = what.find(" - "), bracket = what.find("] ");
  what.erase(0, dash != none ? dash + 3 : bracket != none ? bracket + 2 : 0);
  what.erase(std::min(what.find("; last read: '"), what.size()));
  if (what == "unexpected '}'; expected string literal") return "comma before '}'; remove it";
  if (what == "invalid literal") return "a bare word or sign; expected JSON, with keys and strings in double quotes";
  const auto end = [&](std::string_view theirs, std::string_view ours) {
    const std::string tail = cat("; expected ", theirs);
    if (what.ends_with(tail)) what.replace(what.size() - tail.size(), tail.size(), cat("; expected ", ours));
  };
  end("string literal", "a key in double quotes");
  end("'[', '{', or a literal", "a value");
  end("'}'", "',' or '}'");
  end("']'", "',' or ']'");
  return what;
}

JsonValue of_kind(Kind kind) {
  JsonValue value;
  value.kind = kind;
  return value;
}

JsonValue number(double real) {
  JsonValue value = of_kind(Kind::number);
  value.real = real;
  value.whole = std::abs(real) <= 0x1p53 && std::trunc(real) == real;
  value.negative = real < 0;
  if (value.whole) value.magnitude = static_cast<std::uint64_t>(std::abs(real));
  return value;
}

JsonValue integer(bool negative, std::uint64_t magnitude) {
  JsonValue value = of_kind(Kind::number);
  value.real = negative ? -static_cast<double>(magnitude) : static_cast<double>(magnitude);
  value.whole = true, value.negative = negative, value.magnitude = magnitude;
  return value;
}

// Receives the parser's events; the names are the parser's.
class Collector {
 public:
  Collector(std::string_view text, const std::size_t& count) : text_(text), count_(count) {}

  bool null() { return add(of_kind(Kind::null)); }
  bool boolean(bool truth) {
    JsonValue value = of_kind(Kind::boolean);
    value.truth = truth;
    return add(value);
  }
  bool number_integer(Json::number_integer_t x) {
    const bool negative = x < 0;
    return add(integer(negative, negative ? 0 - static_cast<std::uint64_t>(x) : static_cast<std::uint64_t>(x)));
  }
  bool number_unsigned(Json::number_unsigned_t x) { return add(integer(false, x)); }
  bool number_float(Json::number_float_t x, const std::string&) { return add(number(x)); }
  bool string(std::string& text) {
    JsonValue value = of_kind(Kind::string);
    value.text = text;
    return add(value);
  }
  bool binary(Json::binary_t&) { return false; }
  bool start_object(std::size_t) { return open(); }
  bool start_array(std::size_t) { return open(); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }

  bool key(const std::string& name) {
    if (depth_ != 1) return true;
    key_ = name, key_end_ = count_, pending_ = true;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const Json::exception& error) {
    const std::size_t at = value_at(), end = at == none ? none : word_end(text_, at);
    word_overflows = error.id == 406;
    if (at != end) return give_up_word(at, end);
    const std::string what = plain_words(error.what());
    std::size_t start = std::min(position - (position > 0), text_.size());
    if (what.starts_with("unexpected string")) start = opening_quote(text_, start);
    while (start > 0 && start < text_.size() && is_word(text_[start]) && is_word(text_[start - 1])) --start;
    fault = JsonFault{start, what, false};
    return false;
  }

  std::vector<JsonEntry> entries;
  std::optional<JsonFault> fault;
  std::size_t word_at = none, word_size = 0;  // a value that is no JSON
  bool word_overflows = false;                // a number too large for a double

 private:
  // Where the value of the latest key begins, npos if it has been read or its colon is missing.
  std::size_t value_at() const {
    if (!pending_) return none;
    const std::size_t colon = skip_blank(text_, key_end_);
    return colon < text_.size() && text_[colon] == ':' ? skip_blank(text_, colon + 1) : none;
  }
  bool add(JsonValue value) {
    if (depth_ != 1) return true;
    const std::size_t at = value_at();
    if (value.kind == Kind::nested) {
      value.source = text_[at] == '[' ? "[...]" : "{...}";
    } else if (value.kind == Kind::string) {
      value.source = clipped(text_.substr(at, count_ - at));
    } else {  // after a number the parser has read one byte further
      const std::size_t end = word_end(text_, at), read = count_ - (value.kind == Kind::number);
      if (end > read && end < text_.size()) return give_up_word(at, end);  // 03, 3x
      value.source = clipped(text_.substr(at, end - at));
    }
    entries.push_back({key_, std::move(value), opening_quote(text_, key_end_ - 1), at});
    pending_ = false;
    return true;
  }
  bool give_up_word(std::size_t at, std::size_t end) {
    word_at = at, word_size = end - at;
    return false;
  }
  bool open() {
    add(of_kind(Kind::nested));
    ++depth_;
    return true;
  }
  bool close() {
    --depth_;
    return true;
  }

  std::string_view text_;
  const std::size_t& count_;
  int depth_ = 0;
  std::string key_;
  std::size_t key_end_ = 0;
  bool pending_ = false;
};

}  // namespace

JsonObject read_object(std::string_view text) {
  const std::size_t first = skip_blank(text, 0);
  if (first == text.size() || text[first] != '{' || text.find('\0') != none)
    return {{}, JsonFault{first == text.size() ? 0 : first, "not a JSON object; expected {\"key\": value, ...}", true}};

  std::string copy(text);  // in which words that are no JSON give way to a 0, so that reading can go on
  std::map<std::size_t, JsonValue> words;
  constexpr std::size_t most_words = 64;
  for (;;) {
    std::size_t count = 0;
    Collector collector(copy, count);
    const char* begin = copy.data();
    const char* end = begin + copy.size();
    Json::sax_parse(CountingIterator{begin, &count}, CountingIterator{end, &count}, &collector,
                    nlohmann::detail::input_format_t::json, true, true);
    if (collector.word_at == none || words.size() == most_words) {
      for (JsonEntry& entry : collector.entries)
        if (const auto word = words.find(entry.value_at); word != words.end()) entry.value = word->second;
      if (collector.word_at != none)
        collector.fault = JsonFault{collector.word_at, "too many words that are no JSON; expected values", false};
      return {std::move(collector.entries), std::move(collector.fault)};
    }
    const std::string word = copy.substr(collector.word_at, collector.word_size);
    JsonValue value = of_kind(Kind::invalid);
    if (collector.word_overflows)
      value = number(std::numeric_limits<double>::infinity() * (word.front() == '-' ? -1 : 1));
    value.source = clipped(word);
    words[collector.word_at] = value;
    copy.replace(collector.word_at, collector.word_size, collector.word_size, ' ');
    copy[collector.word_at] = '0';
  }
}

JsonValue read_word(const std::string& word) {
  std::string json = word == "True" ? "true" : word == "False" ? "false" : word == "None" ? "null" : word;
  const std::size_t dot = json.find('.');
  const auto digit = [&](std::size_t at) { return at < json.size() && json[at] >= '0' && json[at] <= '9'; };
  if (dot != none) {  // 1. -> 1.0 and .5 -> 0.5, but never a lone dot
    const bool before = dot > 0 && digit(dot - 1), after = digit(dot + 1);
    if (before && !after) json.insert(dot + 1, "0");
    if (!before && after) json.insert(dot, "0");
  }
  if (word_end(json, 0) == json.size()) {
    const JsonObject object = read_object(cat("{\"\":", json, "}"));
    if (!object.fault && object.entries.size() == 1 && object.entries[0].value.kind != Kind::invalid) {
      JsonValue value = object.entries[0].value;
      value.source = clipped(word);
      return value;
    }
  }
  return string_value(word);
}

JsonValue string_value(const std::string& text) {
  JsonValue value = of_kind(Kind::string);
  value.text = text;
  value.source = clipped(json_string(text));
  return value;
}

std::string place(std::string_view text, std::size_t at) {
  std::size_t line = 1, column = 1;
  for (const char c : text.substr(0, at)) {
    if (c == '\n') {
      ++line, column = 1;
    } else if ((static_cast<unsigned char>(c) & 0xC0) != 0x80) {
      ++column;
    }
  }
  return cat(line, ":", column);
}

std::string json_string(const std::string& text) {
  return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
}

bool is_utf8(const std::string& text) {
  try {
    Json(text).dump();
    return true;
  } catch (const Json::type_error&) {
    return false;
  }
}

}  // namespace qkgpt
