#include "train/corpus.h"

#include "base/file.h"
#include "format/sha256.h"

namespace qkgpt {

Corpus::Corpus(const std::string& file, double val_fraction, const Tokenizer* vocabulary)
    : Corpus(file, read_file(file), val_fraction, vocabulary) {}

Corpus::Corpus(const std::string& file, const std::string& bytes, double val_fraction, const Tokenizer* vocabulary)
    : path(file),
      sha256(hex(qkgpt::sha256(std::as_bytes(std::span(bytes))))),
      text(vocabulary ? parse_text(bytes, file, *vocabulary) : parse_text(bytes, file)),
      train(train_split(text, val_fraction)),
      val(val_split(text, val_fraction)) {}

}  // namespace qkgpt
