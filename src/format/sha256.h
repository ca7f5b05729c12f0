// SHA-256 (FIPS 180-4), fed in pieces.
#pragma once
#include <array>
#include <cstdint>
#include <string>

#include "base/bytes.h"

namespace qkgpt {

using Digest = std::array<std::byte, 32>;

class Sha256 {
 public:
  void update(Bytes bytes);
  Digest digest() const;  // of all bytes so far; feeding may go on

 private:
  std::array<std::uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                         0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<std::byte, 64> block_{};  // its first size_ % 64 bytes wait to be processed
  std::uint64_t size_ = 0;             // bytes so far
};

Digest sha256(Bytes bytes);    // ends early when a stop signal came (base/signals.h)
std::string hex(Bytes bytes);  // two lower-case digits a byte

}  // namespace qkgpt
