#include "data/tokenizer.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/text.h"
#include "base/utf8.h"

namespace qkgpt {

bool is_vocabulary(std::span<const char32_t> code_points) {
  for (std::size_t i = 0; i < code_points.size(); ++i) {
    const char32_t c = code_points[i];
    if (c > max_code_point || is_surrogate(c) || (i > 0 && c <= code_points[i - 1])) return false;
  }
  return !code_points.empty();
}

Tokenizer::Tokenizer(std::vector<char32_t> vocabulary) : vocabulary_(std::move(vocabulary)) {
  check(is_vocabulary(vocabulary_), "a vocabulary is sorted and holds characters only");
  ids_.assign(vocabulary_.back() + 1, -1);
  for (std::size_t i = 0; i < vocabulary_.size(); ++i) ids_[vocabulary_[i]] = static_cast<std::int32_t>(i);
}

std::vector<std::int32_t> Tokenizer::encode(std::string_view utf8, std::string_view subject) const {
  std::vector<std::int32_t> ids;
  const std::optional<Utf8Fault> fault = for_each_code_point(utf8, [&](char32_t c) {
    ids.push_back(id(c));
    if (ids.back() < 0) throw unknown_character(subject, c, static_cast<Index>(ids.size()), *this);
  });
  if (fault) throw not_utf8(subject, *fault);
  return ids;
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids) const {
  std::string out;
  for (const std::int32_t i : ids) {
    check(i >= 0 && i < size(), "an id lies within the vocabulary");
    append_utf8(out, code_point(i));
  }
  return out;
}

std::string Tokenizer::shown(Index most) const {
  std::string out;
  for (Index i = 0; i < std::min(size(), most); ++i) out += printable(code_point(i));
  return size() > most ? cat(out, " and ", grouped(size() - most), " more") : out;
}

Error unknown_character(std::string_view subject, char32_t c, Index position, const Tokenizer& tokenizer) {
  return Error(ErrorKind::usage, cat(subject, ": ", described(c), " at position ", position,
                                     ", counted from 1, is not in the vocabulary; the ", grouped(tokenizer.size()),
                                     " characters in it are ", tokenizer.shown(200)));
}

}  // namespace qkgpt
