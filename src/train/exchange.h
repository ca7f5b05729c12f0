// Sums between ranks while backward goes on: recursive halving, then doubling (Thakur, Rabenseifner, Gropp,
// "Optimization of Collective Communication Operations in MPICH", 2005), written out so that the order of every
// addition is ours: neighbours first, then pairs of neighbours, and so on.
#pragma once
#include <condition_variable>
#include <exception>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "autograd/arena.h"

namespace qkgpt {

// Of one update.
struct ExchangeTimes {
  double working = 0.0;  // seconds from the first message to the last
  double waited = 0.0;   // of these, seconds in which nothing else was done
};

class Exchange {
 public:
  // Of a stretch of numbers that every rank has; with one rank nothing is ever to be done.
  explicit Exchange(std::span<float> numbers);
  ~Exchange();
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  // Together: the numbers [begin, end) become their sums over all ranks, some time before finish() returns. Until then
  // nobody else may touch them.
  void post(Index begin, Index end);
  ExchangeTimes finish();

 private:
  struct Piece {
    Index begin, end;
    Index size() const { return end - begin; }
  };
  void work();
  void sum(Piece all);

  std::span<float> numbers_;
  Memory received_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Piece> posted_;  // of this update
  std::size_t done_ = 0;
  bool ending_ = false;
  double working_ = 0.0;
  std::thread worker_;
};

}  // namespace qkgpt
