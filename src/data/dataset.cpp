#include "data/dataset.h"

#include <algorithm>
#include <optional>
#include <type_traits>
#include <utility>

#include "base/rng.h"
#include "base/signals.h"
#include "base/text.h"
#include "base/utf8.h"

namespace qkgpt {
namespace {

constexpr std::string_view byte_order_mark = "\xEF\xBB\xBF";
constexpr Index characters_between_looks = 1 << 22;  // a small part of a second

void look(const Watch& watch, double done) {
  stop_if_asked();
  if (watch) watch(done);
}

struct Survey {
  std::vector<char32_t> vocabulary;  // sorted
  Index characters = 0;
  Index carriage_returns = 0;
};

Survey survey(std::string_view bytes, const std::string& path, Index skipped, const Watch& watch) {
  const double most = static_cast<double>(bytes.size());
  Survey found;
  std::vector<unsigned char> seen(max_code_point + 1);
  std::optional<Utf8Fault> fault = for_each_code_point(bytes, [&](char32_t c) {
    seen[c] = 1;
    if (++found.characters % characters_between_looks == 0)
      look(watch, 0.5 * static_cast<double>(found.characters) / most);
    found.carriage_returns += c == '\r';
  });
  if (fault) {
    fault->offset += skipped;
    throw not_utf8(path, *fault);
  }
  if (found.characters == 0) throw Error(ErrorKind::usage, path + ": the text is empty; give a text with characters");
  for (char32_t c = 0; c <= max_code_point; ++c)
    if (seen[c]) found.vocabulary.push_back(c);
  return found;
}

Text parse(std::string_view bytes, const std::string& path, const Tokenizer* given, const Watch& watch) {
  const bool bom = bytes.starts_with(byte_order_mark);
  const std::string_view body = bytes.substr(bom ? byte_order_mark.size() : 0);
  Survey found = survey(body, path, static_cast<Index>(bytes.size() - body.size()), watch);
  Tokenizer tokenizer = given ? *given : Tokenizer(std::move(found.vocabulary));
  Tokens tokens(found.characters, tokenizer.size());
  Index at = 0;
  for_each_code_point(body, [&](char32_t c) {
    const std::int32_t id = tokenizer.id(c);
    if (id < 0) throw unknown_character(path, c, at + 1, tokenizer);
    tokens.set(at++, id);
    if (at % characters_between_looks == 0)
      look(watch, 0.5 + 0.5 * static_cast<double>(at) / static_cast<double>(found.characters));
  });
  return {std::move(tokenizer), std::move(tokens), static_cast<Index>(bytes.size()), found.carriage_returns, bom};
}

Index train_size(const Text& text, double val_fraction) {
  check(val_fraction >= 0 && val_fraction < 1, "val_fraction is checked by the config");
  return static_cast<Index>((1 - val_fraction) * static_cast<double>(text.tokens.size()));
}

}  // namespace

Tokens::Tokens(Index size, Index vocabulary_size) {
  const std::size_t n = static_cast<std::size_t>(size);
  if (vocabulary_size <= 1 << 8)
    ids_.emplace<0>(n);
  else if (vocabulary_size <= 1 << 16)
    ids_.emplace<1>(n);
  else
    ids_.emplace<2>(n);
}

Index Tokens::size() const {
  return std::visit([](const auto& ids) { return static_cast<Index>(ids.size()); }, ids_);
}

Index Tokens::bytes_per_token() const {
  return std::visit([](const auto& ids) { return static_cast<Index>(sizeof ids[0]); }, ids_);
}

std::int32_t Tokens::operator[](Index i) const {
  return std::visit([i](const auto& ids) { return std::int32_t{ids[static_cast<std::size_t>(i)]}; }, ids_);
}

void Tokens::set(Index i, std::int32_t id) {
  std::visit(
      [i, id](auto& ids) {
        auto& place = ids[static_cast<std::size_t>(i)];
        place = static_cast<std::remove_reference_t<decltype(place)>>(id);
      },
      ids_);
}

void Tokens::copy(Index begin, Index count, std::int32_t* to) const {
  std::visit([=](const auto& ids) { std::copy_n(ids.data() + begin, count, to); }, ids_);
}

Text parse_text(std::string_view bytes, const std::string& path, const Watch& watch) {
  return parse(bytes, path, nullptr, watch);
}

Text parse_text(std::string_view bytes, const std::string& path, const Tokenizer& vocabulary, const Watch& watch) {
  return parse(bytes, path, &vocabulary, watch);
}

void Split::read(Index offset, Index block_size, std::int32_t* inputs, std::int32_t* targets) const {
  check(offset >= 0 && offset < windows(block_size), "a window lies within its split");
  tokens->copy(begin + offset, block_size, inputs);
  tokens->copy(begin + offset + 1, block_size, targets);
}

Split train_split(const Text& text, double val_fraction) {
  return {&text.tokens, 0, train_size(text, val_fraction), "train"};
}

Split val_split(const Text& text, double val_fraction) {
  return {&text.tokens, train_size(text, val_fraction), text.tokens.size(), "val"};
}

void require_length(const Split& split, Index block_size) {
  if (split.windows(block_size) >= 1) return;
  throw Error(ErrorKind::usage, cat("data: the ", split.name, " split has ", split.size(), " characters; block_size ",
                                    block_size, " needs at least ", block_size + 1));
}

Index train_window(std::uint64_t seed, Index step, Index micro_batch, Index row, Index windows) {
  return Stream(seed, "batch", step, micro_batch, row).below(0, windows);
}

Index eval_window(std::uint64_t seed, std::string_view split_name, Index batch, Index row, Index windows) {
  return Stream(seed, "eval", split_name, batch, row).below(0, windows);
}

}  // namespace qkgpt
