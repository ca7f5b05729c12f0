// CRC-32 as in zlib, PNG and Ethernet (reflected polynomial 0xEDB88320): tells results apart at a glance,
// guards nothing.
#pragma once
#include <array>
#include <cstdint>

#include "base/bytes.h"

namespace qkgpt {

namespace detail {
constexpr std::array<std::uint32_t, 256> make_crc_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t n = 0; n < 256; ++n) {
    std::uint32_t c = n;
    for (int bit = 0; bit < 8; ++bit) c = (c & 1) ? 0xEDB88320u ^ (c >> 1) : c >> 1;
    table[n] = c;
  }
  return table;
}
inline constexpr std::array<std::uint32_t, 256> crc_table = make_crc_table();
}  // namespace detail

// Of `bytes`, or of earlier bytes followed by `bytes` when `crc` is the earlier ones' result.
inline std::uint32_t crc32(Bytes bytes, std::uint32_t crc = 0) {
  std::uint32_t c = ~crc;
  for (const std::byte b : bytes) c = detail::crc_table[(c ^ static_cast<std::uint32_t>(b)) & 0xFF] ^ (c >> 8);
  return ~c;
}

}  // namespace qkgpt
