// A tensor: contiguous row-major float32 and a shape. It does not own its memory.
#pragma once
#include <array>
#include <initializer_list>

#include "base/check.h"

namespace qkgpt {

class Shape {
 public:
  Shape() = default;
  Shape(std::initializer_list<Index> dims) : rank_(static_cast<int>(dims.size())) {
    check(rank_ <= 4, "a shape has at most 4 dimensions");
    for (int i = 0; const Index d : dims) dims_[static_cast<std::size_t>(i++)] = d;
  }

  int rank() const { return rank_; }
  Index operator[](int i) const { return dims_[static_cast<std::size_t>(i)]; }
  Index size() const { return rows() * columns(); }
  Index columns() const { return rank_ ? (*this)[rank_ - 1] : 1; }  // the last dimension
  Index rows() const {                                              // all others together
    Index n = 1;
    for (int i = 0; i + 1 < rank_; ++i) n *= (*this)[i];
    return n;
  }
  friend bool operator==(const Shape&, const Shape&) = default;

 private:
  std::array<Index, 4> dims_{};
  int rank_ = 0;
};

struct Tensor {
  float* data = nullptr;
  Shape shape;

  Index size() const { return shape.size(); }
  Index rows() const { return shape.rows(); }
  Index columns() const { return shape.columns(); }
};

}  // namespace qkgpt
