// The text of a run: read, hashed, turned into tokens and split.
#pragma once
#include <optional>
#include <string>
#include <utility>

#include "config/config.h"
#include "data/dataset.h"

namespace qkgpt {

struct Corpus {
  // `vocabulary`: of the checkpoint the model comes from; without one the text's own.
  // Together: rank 0 reads the file. Error(usage) for a text that cannot be used. `watch` is called from the start on.
  Corpus(const std::string& path, double val_fraction, const Tokenizer* vocabulary = nullptr, const Watch& watch = {});
  Corpus(const Corpus&) = delete;
  Corpus& operator=(const Corpus&) = delete;

  std::string path;
  std::string sha256;  // of the file's bytes, hexadecimal
  Text text;
  Split train, val;  // point into text; val is empty with val_fraction 0

 private:
  Corpus(const std::string& path, std::pair<Text, std::string> text_and_sha256, double val_fraction);
};

// Error(usage) for a split that is too short for windows of block_size.
void require_lengths(const Corpus& corpus, Index block_size);

}  // namespace qkgpt
