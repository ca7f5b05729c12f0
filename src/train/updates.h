// One update: micro-batches forward and backward, clipping, AdamW.
#pragma once
#include "model/gpt.h"
#include "train/corpus.h"
#include "train/gradient_sum.h"

namespace qkgpt {

// Seconds of one update.
struct Phases {
  double batch = 0.0, forward = 0.0, backward = 0.0, waited = 0.0;  // waited: for other ranks' gradients
  double optimiser = 0.0;                                           // norm, clipping and AdamW
  double sum() const { return batch + forward + backward + waited + optimiser; }
};

struct UpdateResult {
  double loss;  // mean over the micro-batches
  double lr;
  double grad_norm;  // before clipping
  bool made;         // false: loss or norm is not finite, and weights and moments are as before
  Phases seconds;
  double exchange_seconds;  // gradients on their way between ranks; what of it was not waited for lay behind backward
};

// Of an update that was not made: what is not finite, and the numbers.
std::string what_is_not_finite(const UpdateResult& r);

class Updates {
 public:
  Updates(Gpt& gpt, const Split& train, Arena& arena);

  // Together with all ranks: update number `step` (0-based). Its windows, masks and learning rate follow from that
  // number alone.
  UpdateResult make(Index step);

  // From now on adds what every op takes to `times`; null ends it.
  void measure_ops(std::vector<OpTime>* times) { tape_.measure(times); }

 private:
  Gpt& gpt_;
  const Split& train_;
  Tape tape_;
  Shares shares_;
  GradientSum sum_;
  Whole whole_;  // tells sum_
  std::vector<std::int32_t> inputs_, targets_;
  std::vector<double> losses_;  // of this rank's micro-batches
  std::vector<double> all_losses_, partial_norms_;
};

}  // namespace qkgpt
