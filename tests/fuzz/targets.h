// What is fuzzed: everything that reads what a user, a disk or another program may have written. A target takes any
// bytes; it throws or crashes only where the program has a fault.
#pragma once
#include <array>
#include <string_view>

namespace qkgpt::fuzz {

void config(std::string_view bytes);       // a config file, a zero byte, then lines KEY=VALUE as overrides
void safetensors(std::string_view bytes);  // a file as it is
void checkpoint(std::string_view bytes);   // a file whose checksum is mended first
void text(std::string_view bytes);         // a training text
void dataset(std::string_view bytes);      // a byte for val_fraction, one for block_size, then a text
void metrics(std::string_view bytes);      // a byte for the step of the state, then metrics.jsonl

struct Target {
  const char* name;
  void (*run)(std::string_view);
};
inline constexpr std::array targets = {Target{"config", config},         Target{"safetensors", safetensors},
                                       Target{"checkpoint", checkpoint}, Target{"text", text},
                                       Target{"dataset", dataset},       Target{"metrics", metrics}};

}  // namespace qkgpt::fuzz
