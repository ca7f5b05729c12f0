#include "train/exchange.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "kernels/parallel.h"
#include "ranks/ranks.h"

namespace qkgpt {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point t) { return std::chrono::duration<double>(Clock::now() - t).count(); }

}  // namespace

Exchange::Exchange(std::span<float> numbers) : numbers_(numbers) {
  if (ranks::count() == 1) return;
  received_ = Memory(static_cast<Index>(numbers.size_bytes()) / 2 + 64);
  worker_ = std::thread([this] { work(); });
}

Exchange::~Exchange() {
  if (!worker_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  worker_.join();
}

void Exchange::post(Index begin, Index end) {
  if (!worker_.joinable() || begin == end) return;
  {
    const std::lock_guard lock(mutex_);
    posted_.push_back({begin, end});
  }
  changed_.notify_all();
}

ExchangeTimes Exchange::finish() {
  if (!worker_.joinable()) return {};
  const auto begin = Clock::now();
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return done_ == posted_.size(); });
  posted_.clear();
  done_ = 0;
  return {std::exchange(working_, 0.0), seconds_since(begin)};
}

void Exchange::work() {
  flush_subnormals();
  place_thread(0, 0);  // anywhere, not where the thread that made this one is bound to
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return ending_ || done_ < posted_.size(); });
    if (ending_) return;
    const Piece piece = posted_[done_];
    lock.unlock();
    const auto begin = Clock::now();
    sum(piece);
    lock.lock();
    working_ += seconds_since(begin);
    ++done_;
    changed_.notify_all();
  }
}

// Halving: of the piece it still holds, each rank gives one half to its partner and adds the partner's other half to
// its own. After log2(n) such steps every rank has the sums of one part; doubling sends the parts back the same way.
void Exchange::sum(Piece mine) {
  std::vector<std::pair<Piece, Piece>> steps;  // kept and given
  float *x = numbers_.data(), *received = received_.floats();
  const int rank = ranks::rank(), count = ranks::count();
  for (int bit = 1; bit < count; bit *= 2) {
    const Index middle = mine.begin + (mine.size() / 2 + 15) / 16 * 16;
    Piece kept = {mine.begin, std::min(middle, mine.end)}, given = {kept.end, mine.end};
    if (rank & bit) std::swap(kept, given);
    ranks::exchange(rank ^ bit, x + given.begin, given.size(), received, kept.size());
    for (Index i = 0; i < kept.size(); ++i)
      x[kept.begin + i] += received[i];  // left + right, or right + left: the same
    steps.push_back({kept, given});
    mine = kept;
  }
  for (int bit = count / 2; bit > 0; bit /= 2) {
    const auto [kept, given] = steps.back();
    ranks::exchange(rank ^ bit, x + kept.begin, kept.size(), x + given.begin, given.size());
    steps.pop_back();
  }
}

}  // namespace qkgpt
