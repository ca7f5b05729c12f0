#include "train/corpus.h"

#include <filesystem>
#include <future>

#include "base/file.h"
#include "base/text.h"
#include "format/sha256.h"
#include "ranks/ranks.h"

namespace qkgpt {
namespace {

// Of a path that only a config or a checkpoint names, nobody may know where it is looked for.
std::string read_text(const std::string& file) {
  try {
    return read_file(file);
  } catch (const Error& e) {
    const std::filesystem::path path(file);
    std::error_code error;
    const std::string here = path.is_relative() && !exists(file) ? std::filesystem::current_path(error).string() : "";
    throw Error(e.kind(), cat(e.what(), " as --data=FILE", here.empty() ? "" : cat(" (looked for in ", here, ")")));
  }
}

std::pair<Text, std::string> read(const std::string& file, const Tokenizer* vocabulary, const Watch& watch) {
  if (watch) watch(0.0);
  std::string bytes;
  ranks::at_first([&] { bytes = read_text(file); });
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
