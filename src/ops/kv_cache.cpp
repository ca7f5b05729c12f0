#include "ops/kv_cache.h"

#include "kernels/gemm.h"

namespace qkgpt {

KeyValueCache::KeyValueCache(Index layers, Index heads, Index head_size, Index capacity)
    : heads_(heads),
      capacity_(capacity),
      key_floats_(panel_floats(head_size, capacity)),
      head_floats_(key_floats_ + panel_floats(capacity, head_size)),
      floats_(static_cast<std::size_t>(layers * heads * head_floats_)) {}

void KeyValueCache::advance(Index positions) {
  length_ += positions;
  check(length_ <= capacity_, "a key-value cache is full");
}

}  // namespace qkgpt
