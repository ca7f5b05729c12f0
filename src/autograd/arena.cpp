#include "autograd/arena.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>

#if __has_include(<sys/mman.h>)
#include <sys/mman.h>
#endif

namespace qkgpt {
namespace {

constexpr std::size_t huge_page = std::size_t{1} << 21;

}  // namespace

// Large memory comes straight from the system, which gives zeros, and page by page as it is first touched.
Memory::Memory(Index bytes) : bytes_(bytes) {
  const auto size = static_cast<std::size_t>(std::max<Index>(bytes, 1));
#ifdef MAP_ANONYMOUS
  if (size >= huge_page) {
    const std::size_t mapped = size + huge_page;
    void* base = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) throw std::bad_alloc();
    const auto address = reinterpret_cast<std::uintptr_t>(base);
    const std::size_t skipped = (huge_page - address % huge_page) % huge_page;
    data_ = {static_cast<std::byte*>(base) + skipped, Free{base, mapped}};
#ifdef MADV_HUGEPAGE
    madvise(data_.get(), size, MADV_HUGEPAGE);
#endif
    return;
  }
#endif
  data_ = {static_cast<std::byte*>(std::aligned_alloc(64, (size + 63) / 64 * 64)), Free{nullptr, 0}};
  if (!data_) throw std::bad_alloc();
  std::memset(data_.get(), 0, size);
}

void Memory::Free::operator()(std::byte* p) const {
#ifdef MAP_ANONYMOUS
  if (mapping) {
    munmap(mapping, mapped);
    return;
  }
#endif
  std::free(p);
}

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
