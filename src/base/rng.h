// Counter-based random numbers: a pure function of (seed, purpose, where), so there is no generator state
// to save, and reading one stream never shifts another.
// Generator: SplitMix64 (Steele, Lea, Flood, OOPSLA 2014), output i of a stream = mix(key + (i + 1) * gamma).
#pragma once
#include <cmath>
#include <cstdint>
#include <string_view>

#include "base/check.h"

namespace qkgpt {

constexpr std::uint64_t golden_gamma = 0x9E3779B97F4A7C15u;

constexpr std::uint64_t mix64(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

class Stream {
 public:
  // `purpose` separates uses ("init", "batch", ...); `where` says which draw of that use.
  template <class... Where>
  explicit Stream(std::uint64_t seed, std::string_view purpose, Where... where) : key_(mix64(seed + golden_gamma)) {
    absorb(purpose);
    (absorb(where), ...);
  }

  std::uint64_t key() const { return key_; }
  std::uint64_t bits(std::uint64_t i) const { return mix64(key_ + (i + 1) * golden_gamma); }

  // Uniform in [0, 1) on a grid of 2^-53.
  double uniform(std::uint64_t i) const { return static_cast<double>(bits(i) >> 11) * 0x1p-53; }

  // Uniform integer in [0, n), n >= 1: high word of a 64 x 64 bit product, bias below n / 2^64.
  Index below(std::uint64_t i, Index n) const {
    const std::uint64_t a = bits(i), b = static_cast<std::uint64_t>(n), mask = 0xFFFFFFFFu;
    const std::uint64_t low = (a & mask) * (b & mask), m1 = (a >> 32) * (b & mask) + (low >> 32);
    const std::uint64_t m2 = (a & mask) * (b >> 32) + (m1 & mask);
    return static_cast<Index>((a >> 32) * (b >> 32) + (m1 >> 32) + (m2 >> 32));
  }

  // Standard normal by Box and Muller; draws 2i and 2i + 1.
  double normal(std::uint64_t i) const {
    const double u = 1.0 - uniform(2 * i), v = uniform(2 * i + 1);  // u in (0, 1]
    return std::sqrt(-2.0 * std::log(u)) * std::cos(6.283185307179586477 * v);
  }

 private:
  void absorb(std::uint64_t word) { key_ = mix64(key_ + golden_gamma + mix64(word + golden_gamma)); }
  void absorb(Index word) { absorb(static_cast<std::uint64_t>(word)); }
  void absorb(int word) { absorb(static_cast<std::uint64_t>(word)); }
  void absorb(std::string_view word) {
    for (const char c : word) absorb(static_cast<std::uint64_t>(static_cast<unsigned char>(c)));
    absorb(static_cast<std::uint64_t>(word.size()));
  }

  std::uint64_t key_;
};

}  // namespace qkgpt
