#include "autograd/arena.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace qkgpt {

Memory::Memory(Index bytes) : bytes_(bytes) {
  const bool large = bytes >= (Index{1} << 21);
  const std::size_t alignment = large ? std::size_t{1} << 21 : 64;
  const std::size_t size = (static_cast<std::size_t>(bytes) + alignment - 1) / alignment * alignment;
  data_.reset(static_cast<std::byte*>(std::aligned_alloc(alignment, std::max(size, alignment))));
  if (!data_) throw std::bad_alloc();
#ifdef __linux__
  if (large) madvise(data_.get(), size, MADV_HUGEPAGE);
#endif
  std::memset(data_.get(), 0, size);
}

void Memory::Free::operator()(std::byte* p) const { std::free(p); }

void* Arena::take(Index bytes) {
  bytes = (std::max<Index>(bytes, 1) + 63) / 64 * 64;
  if (blocks_.empty() || used_ + bytes > blocks_.back().bytes()) {
    if (!blocks_.empty()) before_ += used_;
    used_ = 0;
    blocks_.emplace_back(std::max(bytes, capacity()));
    ++allocations_;
  }
  void* p = blocks_.back().data() + used_;
  used_ += bytes;
  peak_ = std::max(peak_, before_ + used_);
  return p;
}

void Arena::reset() {
  if (blocks_.size() > 1) {
    blocks_.clear();
    blocks_.emplace_back(peak_);
    ++allocations_;
  }
  used_ = before_ = 0;
}

Index Arena::capacity() const {
  Index bytes = 0;
  for (const Memory& block : blocks_) bytes += block.bytes();
  return bytes;
}

}  // namespace qkgpt
