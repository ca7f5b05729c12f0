#include "fuzz/targets.h"

#include <unistd.h>

#include <cstring>
#include <fstream>
#include <vector>

#include "base/file.h"
#include "config/config.h"
#include "data/dataset.h"
#include "format/safetensors.h"
#include "format/sha256.h"
#include "model/gpt.h"
#include "train/checkpoint.h"
#include "train/metrics.h"

namespace qkgpt::fuzz {
namespace {

// A file that holds the input, one for each process, in memory where the system offers that.
std::string file_of(std::string_view bytes) {
  static const struct Scratch {
    std::string path =
        std::string(access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp") + "/qkgpt_fuzz_" + std::to_string(getpid());
    ~Scratch() { unlink(path.c_str()); }
  } scratch;
  std::ofstream(scratch.path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  return scratch.path;
}

// An Error is the right answer to bad input if it has the kind that is promised and says something.
template <class F>
void expect_errors_of(ErrorKind kind, F f) {
  try {
    f();
  } catch (const Error& e) {
    check(e.kind() == kind, "an error of the promised kind");
    check(std::strlen(e.what()) > 0, "an error says what is wrong");
  }
}

}  // namespace

void config(std::string_view bytes) {
  const auto end = std::min(bytes.find('\0'), bytes.size());
  std::vector<Override> overrides;
  for (auto rest = bytes.substr(std::min(end + 1, bytes.size())); !rest.empty();) {
    const auto line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
    const auto equals = std::min(line.find('='), line.size());
    overrides.push_back({std::string(line.substr(0, equals)), std::string(line.substr(std::min(equals + 1, line.size())))});
  }
  expect_errors_of(ErrorKind::usage, [&] {
    const Config read = load_config({file_of(bytes.substr(0, end))}, overrides);
    const std::string saved = to_json(read);
    check(to_json(parse_config(saved, "saved")) == saved, "a saved config gives the same config again");
    check(qkgpt::min_lr(read) >= 0 && qkgpt::lr_decay_iters(read) >= 0, "derived values are sound");
  });
}

void safetensors(std::string_view bytes) {
  expect_errors_of(ErrorKind::checkpoint, [&] {
    const auto file = SafetensorsFile::parse(std::string(bytes), "x", false);
    Index sum = 0;
    for (const TensorEntry& t : file.tensors()) {
      check(file.find(t.name) == &t, "a tensor is found by its name");
      for (const std::byte b : t.data) sum += static_cast<Index>(b);  // every byte can be read
    }
    check(sum >= 0, "the sum of bytes");
    const std::string path = file_of("");
    write_safetensors(path, file.tensors(), file.metadata(), file.has_trailer());
    const auto again = SafetensorsFile::read(path, file.has_trailer());
    check(again.metadata() == file.metadata() && again.tensors().size() == file.tensors().size(), "written, it reads back");
  });
}

void checkpoint(std::string_view bytes) {
  std::string mended(bytes);
  if (mended.size() >= 32) {
    const auto body = std::as_bytes(std::span(mended)).first(mended.size() - 32);
    const Digest digest = sha256(body);
    std::memcpy(mended.data() + body.size(), digest.data(), 32);
  }
  expect_errors_of(ErrorKind::checkpoint, [&] {
    const Checkpoint read = read_checkpoint(file_of(mended));
    Gpt gpt(read.config, read.tokenizer.size());
    check_tensors(read, gpt);
    gpt.allocate(true);
    load_state(read, gpt);
  });
}

void text(std::string_view bytes) {
  expect_errors_of(ErrorKind::usage, [&] {
    const Text read = parse_text(bytes, "x");
    std::vector<std::int32_t> ids(static_cast<std::size_t>(read.tokens.size()));
    read.tokens.copy(0, read.tokens.size(), ids.data());
    const std::string_view body = read.bom ? bytes.substr(3) : bytes;
    check(read.tokenizer.decode(ids) == body, "decoding gives the text again");
    check(read.tokenizer.encode(body, "x") == ids, "and encoding its numbers");
    const Text same = parse_text(bytes, "x", read.tokenizer);
    check(same.tokens.size() == read.tokens.size(), "its own vocabulary holds every character");
  });
}

void dataset(std::string_view bytes) {
  if (bytes.size() < 2) return;
  const double val_fraction = static_cast<unsigned char>(bytes[0]) / 256.0;
  const Index block_size = 1 + static_cast<unsigned char>(bytes[1]);
  expect_errors_of(ErrorKind::usage, [&] {
    const Text read = parse_text(bytes.substr(2), "x");
    const Split splits[] = {train_split(read, val_fraction), val_split(read, val_fraction)};
    check(splits[0].size() + splits[1].size() == read.tokens.size(), "the splits share the text");
    for (const Split& split : splits) {
      require_length(split, block_size);
      std::vector<std::int32_t> inputs(static_cast<std::size_t>(block_size)), next(inputs);
      for (Index row = 0; row < 4; ++row) {
        const Index at = train_window(1, 2, 0, row, split.windows(block_size));
        split.read(at, block_size, inputs.data(), next.data());
        for (Index i = 0; i + 1 < block_size; ++i)
          check(inputs[static_cast<std::size_t>(i + 1)] == next[static_cast<std::size_t>(i)], "targets follow inputs");
      }
    }
  });
}

void metrics(std::string_view bytes) {
  if (bytes.empty()) return;
  RunState state;
  state.step = static_cast<unsigned char>(bytes[0]);
  state.last_eval_step = state.step % 2 ? state.step : -1;
  const std::string before(bytes.substr(1)), path = file_of(before);
  { const Metrics repaired(path, &state); }
  const std::string after = read_file(path);
  check(before.starts_with(after), "what is kept is the start of what was there");
  check(after.empty() || after.back() == '\n', "whole lines are kept");
  { const Metrics repaired(path, &state); }
  check(read_file(path) == after, "a second repair changes nothing");
}

}  // namespace qkgpt::fuzz
