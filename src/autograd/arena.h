// One stretch of memory that a step fills from the bottom and gives back at once.
#pragma once
#include <cstddef>
#include <memory>
#include <vector>

#include "base/check.h"

namespace qkgpt {

// Aligned, zero-initialised memory; large ones ask the system for huge pages.
class Memory {
 public:
  Memory() = default;
  explicit Memory(Index bytes);
  std::byte* data() const { return data_.get(); }
  float* floats() const { return reinterpret_cast<float*>(data_.get()); }
  Index bytes() const { return bytes_; }

 private:
  struct Free {
    void* mapping;  // what the system gave and takes back, null for memory of malloc
    std::size_t mapped;
    void operator()(std::byte* p) const;
  };
  std::unique_ptr<std::byte, Free> data_;
  Index bytes_ = 0;
};

class Arena {
 public:
  // `bytes` is the expected need of a step; a step that needs more gets another block, and the next reset
  // joins the blocks, so that from the second step of a kind on nothing is allocated.
  explicit Arena(Index bytes = 0) {
    if (bytes > 0) blocks_.emplace_back(bytes);
  }

  // Uninitialised, aligned to 64 bytes, valid until reset().
  void* take(Index bytes);
  float* take_floats(Index n) { return static_cast<float*>(take(n * static_cast<Index>(sizeof(float)))); }

  void reset();
  Index capacity() const;               // bytes held
  Index peak() const { return peak_; }  // most bytes that were ever in use
  Index allocations() const { return allocations_; }

 private:
  std::vector<Memory> blocks_;
  Index used_ = 0;    // of the last block
  Index before_ = 0;  // in all blocks before it
  Index peak_ = 0, allocations_ = 0;
};

}  // namespace qkgpt
