// The header of a safetensors file: what reader and writer share. Nothing outside format/ includes this.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "format/safetensors.h"

namespace qkgpt {

constexpr Index max_header_size = 16 << 20;  // the format allows 100,000,000; every vocabulary fits into this
constexpr Index max_tensors = 50'000;        // and metadata keys: bounds time and memory of a hostile header
constexpr Index max_rank = 64;
constexpr const char* trailer_name = "~sha256";
constexpr Index trailer_size = 32;

// An entry of a header that has not been checked against the file yet.
struct HeaderEntry {
  std::string name;
  DType dtype;
  std::vector<Index> shape;
  Index begin, end;  // bytes, relative to the end of the header
};

struct Header {
  std::vector<HeaderEntry> entries;  // as in the text
  Metadata metadata;
};

// Reads the JSON of a header: syntax, types, unique names, no missing or surplus field. Offsets and shapes
// are numbers from 0 to 2^63 - 1 and no more has been checked. On a fault returns its description, else "".
std::string parse_header(std::string_view json, Header& header);

// Bytes of an element count: product of `shape` x width; none when it overflows, when a dimension exceeds
// the format's 2^48 - 1, or when it is no whole number of bytes.
std::optional<Index> byte_size(DType dtype, const std::vector<Index>& shape);

}  // namespace qkgpt
