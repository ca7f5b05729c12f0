#include "format/sha256.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/signals.h"

namespace qkgpt {
namespace {

using Word = std::uint32_t;

// First 32 bits of the fractional parts of the cube roots of the first 64 primes.
constexpr Word round_constants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

Word load_big_endian(const std::byte* p) {
  return static_cast<Word>(p[0]) << 24 | static_cast<Word>(p[1]) << 16 | static_cast<Word>(p[2]) << 8 |
         static_cast<Word>(p[3]);
}

// One round. The caller renames the eight variables instead of moving their values.
inline void round(Word a, Word b, Word c, Word& d, Word e, Word f, Word g, Word& h, Word k_plus_w) {
  const Word t = h + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) + (g ^ (e & (f ^ g))) + k_plus_w;
  d += t;
  h = t + (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + ((a & b) | (c & (a | b)));
}

// Rounds i to i + 15; `w` is a ring of the last 16 message words, every index into it a constant.
template <bool first>
inline void rounds16(Word (&w)[16], Word (&s)[8], const Word* k) {
  auto& [a, b, c, d, e, f, g, h] = s;
  const auto next = [&](int j) {
    if constexpr (!first) {
      const Word w15 = w[(j + 1) & 15], w2 = w[(j + 14) & 15];
      w[j] += (std::rotr(w15, 7) ^ std::rotr(w15, 18) ^ (w15 >> 3)) + w[(j + 9) & 15] +
              (std::rotr(w2, 17) ^ std::rotr(w2, 19) ^ (w2 >> 10));
    }
    return k[j] + w[j];
  };
  round(a, b, c, d, e, f, g, h, next(0));
  round(h, a, b, c, d, e, f, g, next(1));
  round(g, h, a, b, c, d, e, f, next(2));
  round(f, g, h, a, b, c, d, e, next(3));
  round(e, f, g, h, a, b, c, d, next(4));
  round(d, e, f, g, h, a, b, c, next(5));
  round(c, d, e, f, g, h, a, b, next(6));
  round(b, c, d, e, f, g, h, a, next(7));
  round(a, b, c, d, e, f, g, h, next(8));
  round(h, a, b, c, d, e, f, g, next(9));
  round(g, h, a, b, c, d, e, f, next(10));
  round(f, g, h, a, b, c, d, e, next(11));
  round(e, f, g, h, a, b, c, d, next(12));
  round(d, e, f, g, h, a, b, c, next(13));
  round(c, d, e, f, g, h, a, b, next(14));
  round(b, c, d, e, f, g, h, a, next(15));
}

void compress(std::array<Word, 8>& state, const std::byte* block) {
  Word w[16], s[8];
  for (int i = 0; i < 16; ++i) w[i] = load_big_endian(block + 4 * i);
  std::copy(state.begin(), state.end(), s);
  rounds16<true>(w, s, round_constants);
  for (int i = 16; i < 64; i += 16) rounds16<false>(w, s, round_constants + i);
  for (std::size_t i = 0; i < 8; ++i) state[i] += s[i];
}

}  // namespace

void Sha256::update(Bytes bytes) {
  while (!bytes.empty()) {
    const std::size_t waiting = size_ % 64;
    if (waiting == 0 && bytes.size() >= 64) {
      const std::size_t whole = bytes.size() / 64 * 64;
      for (std::size_t i = 0; i < whole; i += 64) compress(state_, bytes.data() + i);
      size_ += whole, bytes = bytes.subspan(whole);
      continue;
    }
    const std::size_t n = std::min(64 - waiting, bytes.size());
    std::memcpy(block_.data() + waiting, bytes.data(), n);
    size_ += n, bytes = bytes.subspan(n);
    if (size_ % 64 == 0) compress(state_, block_.data());
  }
}

Digest Sha256::digest() const {
  Sha256 padded = *this;
  std::byte tail[72] = {std::byte{0x80}};  // then zeros up to 56 modulo 64, then the length in bits
  const std::size_t zeros_end = 1 + (119 - size_ % 64) % 64;
  for (std::size_t i = 0; i < 8; ++i) tail[zeros_end + i] = static_cast<std::byte>((size_ * 8) >> (56 - 8 * i));
  padded.update({tail, zeros_end + 8});
  Digest out;
  for (std::size_t i = 0; i < 32; ++i) out[i] = static_cast<std::byte>(padded.state_[i / 4] >> (24 - 8 * (i % 4)));
  return out;
}

Digest sha256(Bytes bytes) {
  constexpr std::size_t piece = 1u << 24;  // a small part of a second
  Sha256 h;
  for (; !bytes.empty(); bytes = bytes.subspan(std::min(piece, bytes.size()))) {
    stop_if_asked();
    h.update(bytes.first(std::min(piece, bytes.size())));
  }
  return h.digest();
}

std::string hex(Bytes bytes) {
  std::string out;
  for (const std::byte b : bytes)
    for (const int shift : {4, 0}) out += "0123456789abcdef"[(static_cast<unsigned>(b) >> shift) & 15];
  return out;
}

}  // namespace qkgpt
