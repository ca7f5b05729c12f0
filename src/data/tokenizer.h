// Characters to numbers and back. A character is a Unicode code point; its id is its place in the sorted
// vocabulary, as in nanoGPT's shakespeare_char.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"

namespace qkgpt {

// Not empty, strictly ascending, every element a code point that UTF-8 can hold.
bool is_vocabulary(std::span<const char32_t> code_points);

class Tokenizer {
 public:
  // is_vocabulary(vocabulary) holds.
  explicit Tokenizer(std::vector<char32_t> vocabulary);

  Index size() const { return static_cast<Index>(vocabulary_.size()); }
  const std::vector<char32_t>& vocabulary() const { return vocabulary_; }
  char32_t code_point(Index id) const { return vocabulary_[static_cast<std::size_t>(id)]; }

  // -1 for a character outside the vocabulary.
  std::int32_t id(char32_t c) const { return c < ids_.size() ? ids_[c] : -1; }

  // Error(usage) for bytes that are not UTF-8 and for a character outside the vocabulary, with its
  // position counted in characters from 1. `subject` opens the message ("--prompt", a path).
  std::vector<std::int32_t> encode(std::string_view utf8, std::string_view subject) const;

  // UTF-8. Ids lie in [0, size()).
  std::string decode(std::span<const std::int32_t> ids) const;

  // The characters for a report, those that cannot be seen escaped; beyond `most` only their number.
  std::string shown(Index most) const;

  friend bool operator==(const Tokenizer& a, const Tokenizer& b) { return a.vocabulary_ == b.vocabulary_; }

 private:
  std::vector<char32_t> vocabulary_;
  std::vector<std::int32_t> ids_;  // by code point, up to the largest in the vocabulary
};

// What encode throws for character number `position` (from 1).
Error unknown_character(std::string_view subject, char32_t c, Index position, const Tokenizer& tokenizer);

}  // namespace qkgpt
