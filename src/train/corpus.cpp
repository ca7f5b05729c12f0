#include "train/corpus.h"

#include "base/file.h"
#include "format/sha256.h"
#include "ranks/ranks.h"

namespace qkgpt {
namespace {

std::string read_once(const std::string& path) {
  std::string bytes;
  ranks::at_first([&] { bytes = read_file(path); });
  ranks::share(bytes);
  return bytes;
}

}  // namespace

Corpus::Corpus(const std::string& file, double val_fraction, const Tokenizer* vocabulary)
    : Corpus(file, read_once(file), val_fraction, vocabulary) {}

Corpus::Corpus(const std::string& file, const std::string& bytes, double val_fraction, const Tokenizer* vocabulary)
    : path(file),
      sha256(hex(qkgpt::sha256(std::as_bytes(std::span(bytes))))),
      text(vocabulary ? parse_text(bytes, file, *vocabulary) : parse_text(bytes, file)),
      train(train_split(text, val_fraction)),
      val(val_split(text, val_fraction)) {}

void require_lengths(const Corpus& corpus, Index block_size) {
  require_length(corpus.train, block_size);
  if (corpus.val.size() > 0) require_length(corpus.val, block_size);
}

}  // namespace qkgpt
