#include "train/corpus.h"

#include <future>

#include "base/file.h"
#include "format/sha256.h"
#include "ranks/ranks.h"

namespace qkgpt {
namespace {

std::pair<Text, std::string> read(const std::string& file, const Tokenizer* vocabulary, const Watch& watch) {
  if (watch) watch(0.0);
  std::string bytes;
  ranks::at_first([&] { bytes = read_file(file); });
  ranks::share(bytes);
  // Hashing takes as long as decoding and needs nothing of it.
  std::future<Digest> digest = std::async([&bytes] { return sha256(as_bytes(bytes)); });
  Text text = vocabulary ? parse_text(bytes, file, *vocabulary, watch) : parse_text(bytes, file, watch);
  return {std::move(text), hex(digest.get())};
}

}  // namespace

Corpus::Corpus(const std::string& file, double val_fraction, const Tokenizer* vocabulary, const Watch& watch)
    : Corpus(file, read(file, vocabulary, watch), val_fraction) {}

Corpus::Corpus(const std::string& file, std::pair<Text, std::string> text_and_sha256, double val_fraction)
    : path(file),
      sha256(std::move(text_and_sha256.second)),
      text(std::move(text_and_sha256.first)),
      train(train_split(text, val_fraction)),
      val(val_split(text, val_fraction)) {}

void require_lengths(const Corpus& corpus, Index block_size) {
  require_length(corpus.train, block_size);
  if (corpus.val.size() > 0) require_length(corpus.val, block_size);
}

}  // namespace qkgpt
