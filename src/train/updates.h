// One update: micro-batches forward and backward, clipping, AdamW.
#pragma once
#include "model/gpt.h"
#include "train/corpus.h"

namespace qkgpt {

struct UpdateResult {
  double loss;  // mean over the micro-batches
  double lr;
  double grad_norm;  // before clipping
  bool made;         // false: loss or norm is not finite, and weights and moments are as before
};

class Updates {
 public:
  Updates(Gpt& gpt, const Split& train, Arena& arena);

  // Update number `step` (0-based): its windows, masks and learning rate follow from that number alone.
  UpdateResult make(Index step);

 private:
  Gpt& gpt_;
  const Split& train_;
  Tape tape_;
  std::vector<std::int32_t> inputs_, targets_;
};

}  // namespace qkgpt
