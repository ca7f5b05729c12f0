// What later tokens of a sequence need of its earlier ones: their normalised keys and their values in every layer.
#pragma once
#include <vector>

#include "base/check.h"

namespace qkgpt {

class KeyValueCache {
 public:
  // Room for `capacity` positions; 2 layers capacity C floats, C rounded up head by head to whole vectors.
  KeyValueCache(Index layers, Index heads, Index head_size, Index capacity);

  Index length() const { return length_; }  // positions held, the same in all layers
  Index capacity() const { return capacity_; }
  void advance(Index positions);  // after every layer has put so many more behind the others
  void clear() { length_ = 0; }

  // The panels of kernels/gemm.h that the products of attention read: k^^T (d, capacity), v (capacity, d).
  float* keys(Index layer, Index head) { return floats_.data() + (layer * heads_ + head) * head_floats_; }
  float* values(Index layer, Index head) { return keys(layer, head) + key_floats_; }

 private:
  Index heads_, capacity_, key_floats_, head_floats_, length_ = 0;
  std::vector<float> floats_;
};

}  // namespace qkgpt
