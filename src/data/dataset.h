// A training text as tokens, its split, and the windows that batches are made of.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/watch.h"
#include "data/tokenizer.h"

namespace qkgpt {

// A fixed number of token ids, stored with as few of 8, 16 or 32 bits as the vocabulary needs.
class Tokens {
 public:
  Tokens(Index size, Index vocabulary_size);

  Index size() const;
  Index bytes_per_token() const;
  std::int32_t operator[](Index i) const;
  void set(Index i, std::int32_t id);
  void copy(Index begin, Index count, std::int32_t* to) const;  // [begin, begin + count) lies within

 private:
  std::variant<std::vector<std::uint8_t>, std::vector<std::uint16_t>, std::vector<std::int32_t>> ids_;
};

struct Text {
  Tokenizer tokenizer;
  Tokens tokens;
  Index bytes;             // of the file, a byte order mark included
  Index carriage_returns;  // U+000D among the characters
  bool bom;                // a leading byte order mark was there and was dropped
};

// Decodes a whole text; its sorted set of characters is the vocabulary, or `vocabulary` is and must contain
// them. Needs the bytes and the tokens at one time, nothing else of that order.
// Error(usage): not UTF-8 (offset and byte), empty, a character outside `vocabulary` (position counted in
// characters from 1, the byte order mark left out). Ends early when a stop signal came (base/signals.h).
Text parse_text(std::string_view bytes, const std::string& path, const Watch& watch = {});
Text parse_text(std::string_view bytes, const std::string& path, const Tokenizer& vocabulary, const Watch& watch = {});

// The tokens [begin, end) of a text that outlives it and stays where it is.
struct Split {
  const Tokens* tokens;
  Index begin, end;
  const char* name;  // "train", "val"

  Index size() const { return end - begin; }
  // Number of places at which a window with its targets can start; below 1 for a split that is too short.
  Index windows(Index block_size) const { return size() - block_size; }
  // inputs (block_size): tokens from `offset` on, 0 <= offset < windows(block_size);
  // targets (block_size): the tokens after them.
  void read(Index offset, Index block_size, std::int32_t* inputs, std::int32_t* targets) const;
};

// The first int((1 - val_fraction) * n) tokens, in doubles as Python computes it; 0 <= val_fraction < 1.
Split train_split(const Text& text, double val_fraction);
// The others; empty when val_fraction is 0.
Split val_split(const Text& text, double val_fraction);

// Error(usage) for a split below block_size + 1 tokens, with both numbers.
void require_length(const Split& split, Index block_size);

// Where a window starts, in [0, windows), uniform; a pure function of its arguments (base/rng.h).
Index train_window(std::uint64_t seed, Index step, Index micro_batch, Index row, Index windows);
Index eval_window(std::uint64_t seed, std::string_view split_name, Index batch, Index row, Index windows);

}  // namespace qkgpt
