// UTF-8 as RFC 3629 has it, no leniency: overlong forms, surrogates, code points above U+10FFFF and
// sequences cut short are faults.
#pragma once
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>

#include "base/check.h"
#include "base/text.h"

namespace qkgpt {

constexpr char32_t max_code_point = 0x10FFFF;
constexpr bool is_surrogate(char32_t c) { return c >= 0xD800 && c <= 0xDFFF; }

// Where decoding stopped: the first byte of the malformed sequence, offsets from 0 (as Python reports it).
struct Utf8Fault {
  Index offset;
  unsigned char byte;
  const char* reason;
};

namespace detail {

struct Utf8Step {
  char32_t code_point;
  std::size_t length;  // bytes taken
  const char* fault;   // null when well formed
};

// The code point at the start of `s`, which is not empty.
inline Utf8Step decode_one(std::string_view s) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(s[i]); };
  const unsigned lead = byte(0);
  if (lead < 0x80) return {lead, 1, nullptr};
  if (lead < 0xC0) return {0, 1, "a continuation byte without its lead byte"};
  if (lead > 0xF7) return {0, 1, "a byte that UTF-8 never uses"};
  const std::size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  char32_t c = lead & (0x7Fu >> length);
  for (std::size_t i = 1; i < length; ++i) {
    if (i == s.size()) return {0, 1, "a sequence cut off by the end"};
    if ((byte(i) & 0xC0u) != 0x80) return {0, 1, "an incomplete sequence"};
    c = (c << 6) | (byte(i) & 0x3Fu);
  }
  if (c < (length == 2 ? 0x80u : length == 3 ? 0x800u : 0x10000u)) return {0, 1, "an overlong form"};
  if (is_surrogate(c)) return {0, 1, "a surrogate"};
  if (c > max_code_point) return {0, 1, "a code point above U+10FFFF"};
  return {c, length, nullptr};
}

inline std::string code_in_hex(const char* format, char32_t c) {
  char buffer[16];
  std::snprintf(buffer, sizeof buffer, format, static_cast<unsigned>(c));
  return buffer;
}

}  // namespace detail

// Calls f(code point) for each code point of `bytes` up to the first fault, which it returns.
template <class F>
std::optional<Utf8Fault> for_each_code_point(std::string_view bytes, F f) {
  for (std::size_t i = 0; i < bytes.size();) {
    const unsigned char byte = static_cast<unsigned char>(bytes[i]);
    if (byte < 0x80) {
      f(static_cast<char32_t>(byte)), ++i;
      continue;
    }
    const detail::Utf8Step step = detail::decode_one(bytes.substr(i, 4));
    if (step.fault) return Utf8Fault{static_cast<Index>(i), byte, step.fault};
    f(step.code_point), i += step.length;
  }
  return std::nullopt;
}

// "SUBJECT: not UTF-8: byte 0x92 at offset 100 is ...; ..."
inline Error not_utf8(std::string_view subject, const Utf8Fault& fault) {
  return Error(ErrorKind::usage,
               cat(subject, ": not UTF-8: byte ", detail::code_in_hex("0x%02X", fault.byte), " at offset ",
                   fault.offset, " starts ", fault.reason, "; convert the text to UTF-8, for instance with iconv"));
}

// `c` is no surrogate and at most U+10FFFF.
inline void append_utf8(std::string& out, char32_t c) {
  const auto put = [&](char32_t byte) { out += static_cast<char>(static_cast<unsigned char>(byte)); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xC0 | (c >> 6)), put(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    put(0xE0 | (c >> 12)), put(0x80 | ((c >> 6) & 0x3F)), put(0x80 | (c & 0x3F));
  } else {
    put(0xF0 | (c >> 18)), put(0x80 | ((c >> 12) & 0x3F)), put(0x80 | ((c >> 6) & 0x3F)), put(0x80 | (c & 0x3F));
  }
}

// For messages: the character itself, or Python's escape where it cannot be seen or would disturb a
// terminal ("\n", "\x1b", "\u200b").
inline std::string printable(char32_t c) {
  if (c == '\n') return "\\n";
  if (c == '\r') return "\\r";
  if (c == '\t') return "\\t";
  if (c == '\\') return "\\\\";
  if (c < 0x20 || (c >= 0x7F && c <= 0xA0) || c == 0xAD) return detail::code_in_hex("\\x%02x", c);
  const bool unseen = (c >= 0x2000 && c <= 0x200F) || (c >= 0x2028 && c <= 0x202F) || (c >= 0x205F && c <= 0x206F) ||
                      c == 0x3000 || (c >= 0xFE00 && c <= 0xFE0F) || c == 0xFEFF || (c >= 0xFFF0 && c <= 0xFFFB) ||
                      is_surrogate(c) || (c >= 0xE000 && c <= 0xF8FF);
  if (unseen) return detail::code_in_hex("\\u%04x", c);
  if (c >= 0xE0000) return detail::code_in_hex("\\U%08x", c);  // tags, selectors, private use
  std::string out;
  append_utf8(out, c);
  return out;
}

// For messages: foreign text, whatever it holds, on one line and of bounded length.
inline std::string excerpt(std::string_view text, Index most = 60) {
  std::string out = "'";
  Index count = 0;
  const auto fault = for_each_code_point(text.substr(0, static_cast<std::size_t>(4 * most)), [&](char32_t c) {
    if (count++ < most) out += printable(c);
  });
  const bool whole = !fault && count <= most && text.size() <= static_cast<std::size_t>(4 * most);
  return out + (whole ? "'" : "...'");
}

// "'é' (U+00E9)"
inline std::string described(char32_t c) {
  return cat("'", printable(c), "' (", detail::code_in_hex("U+%04X", c), ")");
}

}  // namespace qkgpt
