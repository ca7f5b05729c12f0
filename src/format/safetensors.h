// Safetensors files: 8 bytes little-endian header length, a JSON header, the tensors' bytes.
// Format: github.com/safetensors/safetensors (README and safetensors/src/tensor.rs). Our addition is the
// trailer: a last tensor "~sha256", U8 [32], the SHA-256 of every byte before it, header included.
#pragma once
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/check.h"

namespace qkgpt {

// All element types of the format, in its words.
// clang-format off
enum class DType {
  BOOL, F4, F6_E2M3, F6_E3M2, U8, I8, F8_E5M2, F8_E4M3, F8_E8M0, F8_E4M3FNUZ, F8_E5M2FNUZ,
  I16, U16, F16, BF16, I32, U32, F32, C64, F64, I64, U64
};
// clang-format on
Index dtype_bits(DType dtype);  // of one element: 4 to 64
const char* dtype_name(DType dtype);
std::optional<DType> dtype_of(std::string_view name);

struct TensorEntry {
  std::string name;
  DType dtype;
  std::vector<Index> shape;  // [] is a scalar; a dimension may be 0
  Bytes data;                // little-endian, row-major, packed; owned elsewhere, unaligned when read
};

using Metadata = std::map<std::string, std::string>;

// Saves through write_durably. Tensors are stored by element width, widest first, then by name, whatever
// their order here, so equal content makes equal bytes. Names are unique; names and metadata are UTF-8.
void write_safetensors(const std::string& path, std::vector<TensorEntry> tensors, const Metadata& metadata,
                       bool trailer);

// The size in bytes of the file that write_safetensors would make; only the sizes of the data are looked at.
Index safetensors_size(std::vector<TensorEntry> tensors, const Metadata& metadata, bool trailer);

// A file in memory, checked whole. Headers beyond 16 MiB or 50,000 tensors are refused.
class SafetensorsFile {
 public:
  // Error(usage): `path` is absent or unreadable. Error(checkpoint): the bytes are damaged, are not
  // safetensors, or have no trailer where one is required; the message tells these apart. A trailer that is
  // there is verified in any case, before the header is looked at.
  static SafetensorsFile read(const std::string& path, bool require_trailer);
  // The same for bytes at hand; `path` is for messages.
  static SafetensorsFile parse(std::string bytes, const std::string& path, bool require_trailer);

  SafetensorsFile(SafetensorsFile&&) = default;
  SafetensorsFile& operator=(SafetensorsFile&&) = default;

  const std::vector<TensorEntry>& tensors() const { return tensors_; }  // as stored, without the trailer
  const TensorEntry* find(std::string_view name) const;                 // null when there is none
  const Metadata& metadata() const { return metadata_; }
  bool has_trailer() const { return has_trailer_; }
  Index size() const { return static_cast<Index>(bytes_.size()); }  // of the file, in bytes
  std::string_view bytes() const { return bytes_; }                 // the whole file

 private:
  SafetensorsFile() = default;

  std::string bytes_;  // what the tensors' data point into; moving a file keeps them valid
  std::vector<TensorEntry> tensors_;
  std::map<std::string, std::size_t, std::less<>> by_name_;
  Metadata metadata_;
  bool has_trailer_ = false;
};

}  // namespace qkgpt
