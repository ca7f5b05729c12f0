#include "data/dataset.h"

#include <set>

#include "base/utf8.h"
#include "catch.h"
#include "expect_error.h"

using namespace qkgpt;
using qkgpt::test::contains;
using qkgpt::test::error_of;

TEST_CASE("the vocabulary is the sorted set of the text's characters", "[unit]") {
  const Text text = parse_text("cab\nba\xC3\xA9", "t.txt");
  CHECK((text.tokenizer.vocabulary() == std::vector<char32_t>{'\n', 'a', 'b', 'c', 0xE9}));
  CHECK(text.tokens.size() == 7);
  CHECK(text.tokens[0] == 3);
  CHECK(text.tokens[6] == 4);
  CHECK(text.bytes == 8);
  CHECK(text.tokenizer.id('z') == -1);
  CHECK(text.tokenizer.id(max_code_point) == -1);
  CHECK(parse_text("abcabc", "t.txt").tokenizer.id('\n') == -1);
  CHECK(parse_text("abcabc", "t.txt").tokenizer.code_point(0) == 'a');
}

TEST_CASE("a text that is not UTF-8 is refused with offset and byte", "[unit]") {
  const auto error = [](const std::string& s) { return error_of(ErrorKind::usage, [&] { parse_text(s, "t.txt"); }); };
  CHECK_THAT(error(std::string(100, 'a') + "\x92" + "bc"), contains("t.txt: not UTF-8: byte 0x92 at offset 100"));
  CHECK_THAT(error("ab\xE2\x82"), contains("byte 0xE2 at offset 2"));
  CHECK_THAT(error("\xEF\xBB\xBF"
                   "ab\xFF"),
             contains("byte 0xFF at offset 5"));  // the mark counts, as in the file
  CHECK_THAT(error(""), contains("t.txt: the text is empty"));
  CHECK_THAT(error("\xEF\xBB\xBF"), contains("t.txt: the text is empty"));
}

TEST_CASE("a leading byte order mark is dropped, a later one is a character", "[unit]") {
  const Text with = parse_text(
                 "\xEF\xBB\xBF"
                 "abc",
                 "t.txt"),
             without = parse_text("abc", "t.txt");
  CHECK(with.bom);
  CHECK_FALSE(without.bom);
  CHECK(with.bytes == 6);
  CHECK((with.tokenizer == without.tokenizer));
  REQUIRE(with.tokens.size() == without.tokens.size());
  for (Index i = 0; i < 3; ++i) CHECK(with.tokens[i] == without.tokens[i]);
  CHECK(parse_text("a\xEF\xBB\xBF"
                   "b",
                   "t.txt")
            .tokenizer.vocabulary()
            .back() == 0xFEFF);
  CHECK(parse_text("\xEF\xBB\xBF\xEF\xBB\xBF", "t.txt").tokens.size() == 1);
}

TEST_CASE("carriage returns are counted and kept", "[unit]") {
  CHECK(parse_text("a\nb\n", "t.txt").carriage_returns == 0);
  const Text crlf = parse_text("a\r\nb\r\n", "t.txt");
  CHECK(crlf.carriage_returns == 2);
  CHECK(crlf.tokens.size() == 6);
  CHECK(crlf.tokenizer.id('\r') == 1);
  CHECK(parse_text("a\rb\r", "t.txt").carriage_returns == 2);
}

TEST_CASE("tokens take the bits the vocabulary needs and no id wraps", "[unit]") {
  for (const Index size : {1, 256, 257, 65536, 65537, 70000}) {
    std::string bytes;
    std::vector<std::int32_t> ids;
    for (Index i = 0; i < size; ++i) {
      const char32_t c = static_cast<char32_t>(i < 0xD000 ? i : i - 0xD000 + 0xE000);
      append_utf8(bytes, c);
      ids.push_back(static_cast<std::int32_t>(i));
    }
    const Text text = parse_text(bytes, "t.txt");
    CHECK(text.tokenizer.size() == size);
    CHECK(text.tokens.bytes_per_token() == (size <= 256 ? 1 : size <= 65536 ? 2 : 4));
    std::vector<std::int32_t> read(ids.size());
    text.tokens.copy(0, size, read.data());
    CHECK((read == ids));
    CHECK(text.tokens[size - 1] == size - 1);
    CHECK((text.tokenizer.decode(read) == bytes));
    CHECK((text.tokenizer.encode(bytes, "t.txt") == ids));
  }
}

TEST_CASE("a character outside the vocabulary is named with code point and position", "[unit]") {
  const Tokenizer tokenizer({'\n', 'a', 'b'});
  for (const std::string& message : {error_of(ErrorKind::usage,
                                              [&] {
                                                tokenizer.encode(
                                                    "ab\xC3\xA9"
                                                    "a",
                                                    "prompt");
                                              }),
                                     error_of(ErrorKind::usage, [&] {
                                       parse_text(
                                           "\xEF\xBB\xBF"
                                           "ab\xC3\xA9",
                                           "prompt", tokenizer);
                                     })}) {
    CHECK_THAT(message,
               contains("prompt: '\xC3\xA9' (U+00E9) at position 3, counted from 1, is not in the vocabulary"));
    CHECK_THAT(message, contains("the 3 characters in it are \\nab"));
  }
  CHECK_THAT(error_of(ErrorKind::usage, [&] { tokenizer.encode("a\xC3", "prompt"); }),
             contains("byte 0xC3 at offset 1"));
  const Text text = parse_text("baab", "t.txt", tokenizer);
  CHECK((text.tokenizer == tokenizer));  // not renumbered, though the text has no newline
  CHECK(text.tokens[0] == 2);
}

TEST_CASE("a vocabulary is sorted, without repetitions and without surrogates", "[unit]") {
  using V = std::vector<char32_t>;
  CHECK(is_vocabulary(V{'a', 'b', max_code_point}));
  for (const V& bad : {V{}, V{'b', 'a'}, V{'a', 'a'}, V{0xD800}, V{max_code_point + 1}}) {
    CHECK_FALSE(is_vocabulary(bad));
    CHECK_THROWS_AS(Tokenizer(bad), std::logic_error);
  }
  CHECK_THROWS_AS(Tokenizer({'a'}).decode(std::vector<std::int32_t>{1}), std::logic_error);
  CHECK_THROWS_AS(Tokenizer({'a'}).decode(std::vector<std::int32_t>{-1}), std::logic_error);
}

TEST_CASE("the split is Python's int((1 - val_fraction) * n)", "[unit]") {
  struct Case {
    Index n;
    double val_fraction;
    Index train;
  };
  for (const Case& c : {Case{1115394, 0.1, 1003854}, Case{10, 0.9, 0}, Case{1000, 0.3, 700}, Case{100, 0.42, 58},
                        Case{1000003, 0.0005, 999502}, Case{7, 0.0, 7}}) {
    const Text text = parse_text(std::string(static_cast<std::size_t>(c.n), 'a'), "t.txt");
    const Split train = train_split(text, c.val_fraction), val = val_split(text, c.val_fraction);
    CHECK(train.begin == 0);
    CHECK(train.size() == c.train);
    CHECK(val.begin == train.end);
    CHECK(val.size() == c.n - c.train);  // 111,540 for Tiny Shakespeare
  }
}

TEST_CASE("a split needs one token more than block_size", "[unit]") {
  const Text text = parse_text(std::string(100, 'a') + std::string(10, 'b'), "t.txt");
  const Split val{&text.tokens, 101, 110, "val"};
  CHECK_NOTHROW(require_length(val, 8));
  CHECK(val.windows(8) == 1);
  CHECK_THAT(error_of(ErrorKind::usage, [&] { require_length(val, 9); }),
             contains("the val split has 9 characters; block_size 9 needs at least 10"));
}

TEST_CASE("windows: targets are the inputs moved on by one, up to the last token", "[unit]") {
  std::string bytes;
  for (int i = 0; i < 128; ++i) bytes += static_cast<char>(i);
  const Text text = parse_text(bytes, "t.txt");
  const Index T = 16;
  const Split split{&text.tokens, 90, 90 + T + 20, "val"};
  REQUIRE(split.windows(T) == 20);
  std::vector<std::int32_t> x(T), y(T);
  for (Index offset = 0; offset < 20; ++offset) {
    split.read(offset, T, x.data(), y.data());
    for (Index t = 0; t < T; ++t) {
      REQUIRE(x[static_cast<std::size_t>(t)] == 90 + offset + t);
      REQUIRE(y[static_cast<std::size_t>(t)] == 90 + offset + t + 1);
    }
  }
  CHECK(y.back() == split.end - 1);
  CHECK_THROWS_AS(split.read(20, T, x.data(), y.data()), std::logic_error);
  CHECK_THROWS_AS(split.read(-1, T, x.data(), y.data()), std::logic_error);
}

TEST_CASE("drawn windows reach both ends and depend on nothing but seed and place", "[unit]") {
  std::set<Index> train, eval;
  for (Index step = 0; step < 100; ++step)
    for (Index row = 0; row < 4; ++row) {
      train.insert(train_window(1, step, 0, row, 20));
      eval.insert(eval_window(1, "val", step, row, 20));
    }
  for (const auto& seen : {train, eval}) {
    CHECK(seen.size() == 20);
    CHECK(*seen.begin() == 0);
    CHECK(*seen.rbegin() == 19);
  }
  const Index many = 1000000;
  const Index here = train_window(1, 5, 2, 3, many);
  CHECK(here == train_window(1, 5, 2, 3, many));
  for (const Index other :
       {train_window(2, 5, 2, 3, many), train_window(1, 6, 2, 3, many), train_window(1, 5, 3, 3, many),
        train_window(1, 5, 2, 4, many), eval_window(1, "train", 5, 2, many)})
    CHECK(here != other);
  CHECK(eval_window(1, "train", 5, 2, many) != eval_window(1, "val", 5, 2, many));
}
