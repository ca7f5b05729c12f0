#include <algorithm>
#include <bit>
#include <nlohmann/json.hpp>
#include <set>

#include "base/file.h"
#include "base/text.h"
#include "format/safetensors_header.h"
#include "format/sha256.h"

namespace qkgpt {
namespace {

static_assert(std::endian::native == std::endian::little, "tensors are stored as they lie in memory");

void put_in_order(std::vector<TensorEntry>& tensors) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorEntry& a, const TensorEntry& b) {
    const Index left = dtype_bits(a.dtype), right = dtype_bits(b.dtype);
    return left != right ? left > right : a.name < b.name;
  });
}

// Header length and header of tensors that are in order.
std::string header_text(const std::vector<TensorEntry>& tensors, const Metadata& metadata) {
  const auto string = [](const std::string& s) { return nlohmann::json(s).dump(); };  // throws unless UTF-8
  std::string json = "{";
  if (!metadata.empty()) json += cat(string("__metadata__"), ":", nlohmann::json(metadata).dump());
  std::set<std::string_view> names = {"__metadata__"};
  Index begin = 0;
  for (const TensorEntry& t : tensors) {
    check(names.insert(t.name).second, "tensor names are unique");
    const Index end = begin + static_cast<Index>(t.data.size());
    check(byte_size(t.dtype, t.shape) == end - begin, "a tensor's data has the size of its shape");
    if (json.size() > 1) json += ",";
    json += cat(string(t.name), ":{\"dtype\":\"", dtype_name(t.dtype), "\",\"shape\":", nlohmann::json(t.shape).dump(),
                ",\"data_offsets\":[", begin, ",", end, "]}");
    begin = end;
  }
  json += "}";
  json.resize((json.size() + 7) / 8 * 8, ' ');
  check(static_cast<Index>(json.size()) <= max_header_size && static_cast<Index>(tensors.size()) <= max_tensors,
        "a header is readable by ourselves");
  std::string length;
  for (int i = 0; i < 8; ++i) length += static_cast<char>(static_cast<unsigned char>(json.size() >> (8 * i)));
  return length + json;
}

void add_trailer(std::vector<TensorEntry>& tensors, Bytes digest) {
  tensors.push_back({trailer_name, DType::U8, {trailer_size}, digest});
  put_in_order(tensors);
  check(tensors.back().name == trailer_name, "the trailer is last");
}

}  // namespace

void write_safetensors(const std::string& path, std::vector<TensorEntry> tensors, const Metadata& metadata,
                       bool trailer) {
  Digest digest{};
  put_in_order(tensors);
  if (trailer) add_trailer(tensors, digest);
  const std::string header = header_text(tensors, metadata);
  std::vector<Bytes> pieces = {as_bytes(header)};
  for (const TensorEntry& t : tensors) pieces.push_back(t.data);
  if (trailer) {
    Sha256 hash;
    for (std::size_t i = 0; i + 1 < pieces.size(); ++i) hash.update(pieces[i]);
    digest = hash.digest();  // which the last piece looks at
  }
  write_durably(path, pieces);
}

Index safetensors_size(std::vector<TensorEntry> tensors, const Metadata& metadata, bool trailer) {
  const Digest digest{};
  put_in_order(tensors);
  if (trailer) add_trailer(tensors, digest);
  Index size = static_cast<Index>(header_text(tensors, metadata).size());
  for (const TensorEntry& t : tensors) size += static_cast<Index>(t.data.size());
  return size;
}

}  // namespace qkgpt
