// A named tensor that training changes, and the ordered list of them all. Optimiser, checkpoint, counting and
// export walk that list.
#pragma once
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "autograd/arena.h"
#include "autograd/tape.h"

namespace qkgpt {

struct Param {
  std::string name;  // nanoGPT's state_dict name, e.g. "transformer.h.0.attn.c_attn.weight"
  Shape shape;
  bool decay = false;    // weight decay applies (2-D weights only)
  double lr_mult = 1.0;  // factor on the learning rate

  Var var;                   // value and gradient
  float* exp_avg = nullptr;  // AdamW's moments, null when not training
  float* exp_avg_sq = nullptr;

  // Rearranged copies for the matrix kernels, made on first use and again after the value changed.
  std::vector<float> panels, panels_transposed;
  bool panels_valid = false, panels_transposed_valid = false;

  Index size() const { return shape.size(); }
  float* value() { return var.value.data; }
  const float* value() const { return var.value.data; }
  void changed() { panels_valid = panels_transposed_valid = false; }  // call after writing to the value
};

class Params {
 public:
  Param& add(std::string name, Shape shape, bool decay);

  // Takes the memory after the last add(): values, and for training gradients and moments, each kind in one
  // stretch in the order of the list. All zero.
  void allocate(bool training);

  Param* find(std::string_view name);  // null if there is none
  std::deque<Param>& list() { return list_; }
  const std::deque<Param>& list() const { return list_; }

  Index count() const;              // numbers in all
  Index count(bool decay) const;    // numbers decayed or not
  Index tensors(bool decay) const;  // tensors decayed or not

  void start_gradients();  // the next backward overwrites them

 private:
  std::deque<Param> list_;  // a deque: references stay good
  Memory memory_;
};

}  // namespace qkgpt
