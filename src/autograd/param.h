// A named tensor that training changes, and the ordered list of them all. Optimiser, checkpoint, counting and
// export walk that list.
#pragma once
#include <deque>
#include <span>
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

// A stretch of one parameter, at most Params::chunk numbers long: what optimiser and norm work on at a time.
struct Chunk {
  Param* param;
  Index begin, count;
};

class Params {
 public:
  static constexpr Index chunk = 4096;

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

  // All parameters, cut up in the order of the list; empty before allocate(). A constant cut: sums over chunks have
  // the same bits for any number of threads.
  const std::vector<Chunk>& chunks() const { return chunks_; }

  void start_gradients();  // the next backward overwrites them
  // All of them in one stretch, in the order of the list; zeros between them fill up cache lines.
  std::span<float> gradients() { return gradients_; }

 private:
  std::deque<Param> list_;  // a deque: references stay good
  std::vector<Chunk> chunks_;
  std::span<float> gradients_;
  Memory memory_;
};

}  // namespace qkgpt
