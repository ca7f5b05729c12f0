#include "base/utf8.h"

#include <vector>

#include "base/text.h"
#include "catch.h"

using namespace qkgpt;
using qkgpt::test::contains;

namespace {
std::vector<char32_t> decoded(std::string_view bytes, std::optional<Utf8Fault>& fault) {
  std::vector<char32_t> out;
  fault = for_each_code_point(bytes, [&](char32_t c) { out.push_back(c); });
  return out;
}
}  // namespace

TEST_CASE("every code point survives UTF-8 there and back", "[unit]") {
  std::string bytes;
  std::vector<char32_t> all;
  for (char32_t c = 0; c <= max_code_point; ++c)
    if (!is_surrogate(c)) append_utf8(bytes, c), all.push_back(c);
  CHECK(bytes.size() == 0x80 + 0x780 * 2 + (0xF800 - 0x800) * 3 + 0x100000 * 4);
  std::optional<Utf8Fault> fault;
  CHECK((decoded(bytes, fault) == all));
  CHECK_FALSE(fault);
}

TEST_CASE("malformed UTF-8 is refused with the offset and the byte of the sequence", "[unit]") {
  struct Case {
    std::string bytes;
    int byte;
    std::string reason;
  };
  const Case cases[] = {
      {"\x92", 0x92, "without its lead"},
      {"\x80", 0x80, "without its lead"},
      {"\xBF", 0xBF, "without its lead"},
      {"\xC0\x80", 0xC0, "overlong"},
      {"\xC1\xBF", 0xC1, "overlong"},
      {"\xE0\x80\x80", 0xE0, "overlong"},
      {"\xE0\x9F\xBF", 0xE0, "overlong"},
      {"\xF0\x80\x80\x80", 0xF0, "overlong"},
      {"\xF0\x8F\xBF\xBF", 0xF0, "overlong"},
      {"\xED\xA0\x80", 0xED, "surrogate"},
      {"\xED\xBF\xBF", 0xED, "surrogate"},
      {"\xF4\x90\x80\x80", 0xF4, "above U+10FFFF"},
      {"\xF7\xBF\xBF\xBF", 0xF7, "above U+10FFFF"},
      {"\xF8\x88\x80\x80\x80", 0xF8, "never uses"},
      {"\xFE", 0xFE, "never uses"},
      {"\xFF", 0xFF, "never uses"},
      {"\xC3(", 0xC3, "incomplete"},
      {"\xE2\x82(", 0xE2, "incomplete"},
      {"\xE2(\xAC", 0xE2, "incomplete"},
      {"\xF0\x9F\x98(", 0xF0, "incomplete"},
      {"\xC3\xC3\xA9", 0xC3, "incomplete"},
      {"\xC3", 0xC3, "cut off"},
      {"\xE2\x82", 0xE2, "cut off"},
      {"\xF0\x9F\x98", 0xF0, "cut off"},
  };
  for (const Case& c : cases)
    for (const std::string before : {"", "abc", "\xC3\xA9"})
      for (const std::string after : {"", "xyz"}) {
        if (!after.empty() && c.reason == "cut off") continue;
        INFO(c.reason << " " << c.byte);
        std::optional<Utf8Fault> fault;
        decoded(before + c.bytes + after, fault);
        REQUIRE(fault);
        CHECK(fault->offset == static_cast<Index>(before.size()));
        CHECK(fault->byte == c.byte);
        CHECK_THAT(fault->reason, contains(c.reason));
      }
  std::optional<Utf8Fault> fault;
  CHECK(decoded("ab\x92", fault).size() == 2);
  CHECK_THAT(not_utf8("t.txt", *fault).what(), contains("t.txt: not UTF-8: byte 0x92 at offset 2"));
}

TEST_CASE("messages show characters and escape what cannot be seen", "[unit]") {
  CHECK(printable('\n') == "\\n");
  CHECK(printable('\r') == "\\r");
  CHECK(printable('\t') == "\\t");
  CHECK(printable(0) == "\\x00");
  CHECK(printable(0x1B) == "\\x1b");
  CHECK(printable(0x85) == "\\x85");
  CHECK(printable('\\') == "\\\\");
  CHECK(printable(' ') == " ");
  CHECK(printable(0xE9) == "\xC3\xA9");
  CHECK(printable(0x200B) == "\\u200b");
  CHECK(printable(0xFEFF) == "\\ufeff");
  CHECK(printable(0xD800) == "\\ud800");
  CHECK(printable(0x1F600) == "\xF0\x9F\x98\x80");
  CHECK(printable(0xE0041) == "\\U000e0041");
  CHECK(described(0xE9) == "'\xC3\xA9' (U+00E9)");
  CHECK(described('\n') == "'\\n' (U+000A)");
  CHECK(excerpt("a\n\x1B") == "'a\\n\\x1b'");
  CHECK(excerpt(std::string(61, 'x')) == "'" + std::string(60, 'x') + "...'");
  CHECK(excerpt("ab\xFF") == "'ab...'");
}

TEST_CASE("long lines are folded under their last column and nothing is lost", "[unit]") {
  CHECK(folded("short\n\nlines\n", 8) == "short\n\nlines\n");
  CHECK(folded("  --a  one two three\nb", 12) == "  --a  one\n       two\n       three\nb");
  CHECK(folded("  --a  one two", 14) == "  --a  one two");
  CHECK(folded("unbreakable word", 6) == "unbreakable word");
}
