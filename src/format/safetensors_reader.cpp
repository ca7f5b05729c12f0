#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#include "base/file.h"
#include "base/text.h"
#include "base/utf8.h"
#include "format/safetensors_header.h"
#include "format/sha256.h"

namespace qkgpt {
namespace {

// The last 32 bytes are the SHA-256 of all before them.
bool digest_matches(Bytes file) {
  if (file.size() < trailer_size) return false;
  const Bytes stored = file.last(trailer_size);
  const Digest computed = sha256(file.first(file.size() - trailer_size));
  return std::memcmp(stored.data(), computed.data(), trailer_size) == 0;
}

bool is_zip(std::string_view file) { return file.starts_with("PK\x03\x04"); }
bool is_pickle(std::string_view file) {  // the '{' tells it from a header of 640 bytes
  return file.size() > 8 && file[0] == '\x80' && file[1] >= 2 && file[1] <= 5 && file[8] != '{';
}

// Sorts the entries by place and checks that they tile `data_size` bytes. Returns the fault or "".
std::string tiling_fault(std::vector<HeaderEntry>& entries, Index data_size) {
  std::sort(entries.begin(), entries.end(), [](const HeaderEntry& a, const HeaderEntry& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
  });
  Index at = 0;
  for (const HeaderEntry& e : entries) {
    const std::optional<Index> size = byte_size(e.dtype, e.shape);
    if (!size) return cat("the shape of ", excerpt(e.name), " has no size in bytes");
    if (e.begin > e.end || e.end > data_size)
      return cat("the data of ", excerpt(e.name), ", bytes ", e.begin, " to ", e.end, ", does not lie within the ",
                 data_size, " bytes of data");
    if (e.begin != at) return cat("there is a gap or an overlap before ", excerpt(e.name));
    if (e.end - e.begin != *size)
      return cat("the shape of ", excerpt(e.name), " needs ", *size, " bytes, not ", e.end - e.begin);
    at = e.end;
  }
  if (at != data_size) return cat(data_size - at, " bytes follow the last tensor");
  return "";
}

// The header's length as the file's start gives it, if that fits into the file and our limit.
// Returns the fault or "".
std::string length_fault(std::string_view start, Index file_size, Index& header_size) {
  if (start.size() < 8) return cat("a file of ", start.size(), " bytes has no header");
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < 8; ++i) length |= std::uint64_t{static_cast<unsigned char>(start[i])} << (8 * i);
  if (length > static_cast<std::uint64_t>(file_size - 8))
    return cat("the header's length is given as ", length, " in a file of ", file_size, " bytes");
  if (length > static_cast<std::uint64_t>(max_header_size))
    return cat("a header of ", length, " bytes is too long, ", max_header_size, " are allowed");
  header_size = static_cast<Index>(length);
  return "";
}

[[noreturn]] void refuse(const std::string& path, const std::string& message) {
  throw Error(ErrorKind::checkpoint, cat(path, ": ", message));
}

[[noreturn]] void refuse_layout(const std::string& path, std::string_view file, bool digest_ok,
                                const std::string& fault) {
  if (is_zip(file) || is_pickle(file))
    refuse(path, "PyTorch pickle files are not read; give a safetensors file that qkgpt saved");
  if (digest_ok)
    refuse(path, cat("not a valid safetensors file, though its checksum is right: ", fault,
                     "; give a file that qkgpt saved"));
  refuse(path, cat("damaged, or no safetensors file at all: ", fault, "; give an intact file"));
}

}  // namespace

SafetensorsFile SafetensorsFile::read(const std::string& path, bool require_trailer) {
  // First the length, so that no gigabytes of something else are read.
  return parse(read_file(path, 16,
                         [&path](std::string_view start, Index size) {
                           Index header_size = 0;
                           const std::string fault = length_fault(start, size, header_size);
                           if (!fault.empty()) refuse_layout(path, start, false, fault);
                           return true;
                         }),
               path, require_trailer);
}

SafetensorsFile SafetensorsFile::parse(std::string bytes, const std::string& path, bool require_trailer) {
  Index header_size = 0;
  std::string fault = length_fault(bytes, static_cast<Index>(bytes.size()), header_size);
  if (!fault.empty()) refuse_layout(path, bytes, false, fault);
  const bool digest_ok = digest_matches(as_bytes(bytes));
  Header header;
  fault = parse_header(std::string_view(bytes).substr(8, static_cast<std::size_t>(header_size)), header);
  const Index data_begin = 8 + header_size;
  if (fault.empty()) fault = tiling_fault(header.entries, static_cast<Index>(bytes.size()) - data_begin);
  if (!fault.empty()) refuse_layout(path, bytes, digest_ok, fault);

  SafetensorsFile file;
  file.bytes_ = std::move(bytes);
  file.metadata_ = std::move(header.metadata);
  const Bytes data = as_bytes(file.bytes_).subspan(static_cast<std::size_t>(data_begin));
  for (HeaderEntry& e : header.entries) {
    const bool last = &e == &header.entries.back();
    if (e.name == trailer_name) {
      if (!last || e.dtype != DType::U8 || e.shape != std::vector<Index>{trailer_size})
        refuse(path, "damaged or foreign: its ~sha256 entry is not the last tensor, U8 [32]; give an intact file");
      file.has_trailer_ = true;
      continue;
    }
    const Bytes part = data.subspan(static_cast<std::size_t>(e.begin), static_cast<std::size_t>(e.end - e.begin));
    file.by_name_.emplace(e.name, file.tensors_.size());
    file.tensors_.push_back({std::move(e.name), e.dtype, std::move(e.shape), part});
  }
  if (file.has_trailer_ && !digest_ok)
    refuse(path, "damaged: its content does not match its checksum; give an intact file");
  if (!require_trailer || file.has_trailer_) return file;
  if (const TensorEntry* t = file.tensors_.empty() ? nullptr : &file.tensors_.back();
      t && t->dtype == DType::U8 && t->shape == std::vector<Index>{trailer_size})  // a trailer whose name is damaged
    refuse(path, cat("damaged or foreign: its last tensor is a checksum named ", excerpt(t->name),
                     " and not '~sha256'; give an intact file"));
  refuse(path,
         "not a checkpoint of qkgpt: a safetensors file of other origin, without checksum, vocabulary and optimiser "
         "state; give a file that `qkgpt train` saved (--resume and init_from take no other)");
}

const TensorEntry* SafetensorsFile::find(std::string_view name) const {
  const auto it = by_name_.find(name);
  return it == by_name_.end() ? nullptr : &tensors_[it->second];
}

}  // namespace qkgpt
