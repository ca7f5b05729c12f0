// The gradient of an update: the sum over its micro-batches, along one tree whatever the number of ranks.
//
// With G = c 2^j micro-batches, c odd, every c in a row are a leaf, added up as they come (backward adds to what is
// there). Leaves are added in pairs, pairs in pairs, and so on. A rank makes an equal share of neighbouring leaves, so
// the lower levels of the tree are its own and the upper ones lie between ranks:
//
//   leaf      0   1   2   3   4   5   6   7            4 ranks, 8 leaves
//   rank        0       1       2       3
//               +       +       +       +    on each rank
//                   +               +        between neighbours
//                           +                between pairs
#pragma once
#include <vector>

#include "autograd/param.h"
#include "train/exchange.h"

namespace qkgpt {

// How the micro-batches of an update fall to this rank.
struct Shares {
  Index leaves;  // of this rank, a power of two
  Index chain;   // micro-batches in a leaf
  Index first;   // number of this rank's first micro-batch

  Shares(Index micro_batches, int rank, int ranks);
};

// Error(usage) when these ranks cannot share the micro-batches of an update.
void require_shares(Index micro_batches, int ranks);

class GradientSum {
 public:
  GradientSum(Params& params, const Shares& shares);

  // The parameters' gradients hold those of a leaf, not this rank's last.
  void keep_leaf();
  // During the backward pass of the last one, in any cut but the same on all ranks: the gradients of the parameters
  // from `first` on in the list, up to those of the last call, are whole.
  void whole_from(const Param& first);
  // The gradients of all parameters are the sums over all micro-batches of all ranks.
  ExchangeTimes finish();

 private:
  float* waiting(std::size_t level) { return waiting_[level].floats(); }
  void add_waiting(std::size_t level, Index begin, Index end);

  Params& params_;
  Index leaf_ = 0;
  std::vector<Memory> waiting_;  // by level: the sum of 2^level leaves that waits for its right neighbour
  Index whole_;                  // gradients from here on are added up and on their way
  Exchange exchange_;
};

}  // namespace qkgpt
