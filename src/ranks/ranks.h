// The processes that train one model together: ranks, in MPI's word. Without MPI, or started alone, there is one.
// Rank 0 reads and writes files and the terminal. All ranks make the same calls in the same order, those marked
// "together"; what one rank alone learns (a signal, an error) becomes known to all in such a call.
#pragma once
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/check.h"

namespace qkgpt::ranks {

// Joins the others where a launcher (mpirun, srun) started several processes. Error(usage) where it did and this
// build is without MPI.
void start();
void finish();                        // together, when all is done
[[noreturn]] void abandon(int code);  // ends all ranks: one has met what the others do not know of
inline constexpr const char* lost = "a rank or its network is lost; go on with --resume";

extern const bool with_mpi;  // in this build
int rank();
int count();
inline bool first() { return rank() == 0; }
int launched();  // processes that the launcher says it started; 1 without one

// Together: what `root` has, everywhere.
void broadcast(void* data, Index bytes, int root = 0);
// Together: a piece of every rank, in the order of ranks, everywhere.
void gather(const void* mine, Index bytes, void* all);
// With one other rank, which does the same: sends and receives at once. One at a time; may run on a thread of its own
// while no other call of this file does.
void exchange(int partner, const float* out, Index n_out, float* in, Index n_in);

// --- made of the calls above ---

template <class T>
std::vector<T> gathered(const T& mine) {
  static_assert(std::is_trivially_copyable_v<T>);
  std::vector<T> all(static_cast<std::size_t>(count()));
  gather(&mine, static_cast<Index>(sizeof(T)), all.data());
  return all;
}

// Rank 0's value, everywhere.
template <class T>
void share(T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  broadcast(&value, static_cast<Index>(sizeof(T)));
}
void share(std::string& bytes, int root = 0);

// Together, as base/signals.h says alone: Interrupted when any rank was told to stop; true when any was told to save.
void stop_if_asked();
bool take_save_request();

// How f ended on this rank.
struct Outcome {
  enum How : int { well, interrupted, failed } how = well;
  int code = 0;  // signal or ErrorKind
  std::string message = {};
};
Outcome outcome_of(void (*call)(void*), void* f);
void agree(const Outcome& mine);

// Calls f on every rank. Where it throws on one, all throw what the lowest such rank did.
template <class F>
void together(F&& f) {
  if (count() == 1) return f();
  agree(outcome_of([](void* g) { (*static_cast<std::remove_reference_t<F>*>(g))(); }, &f));
}

// The same for what only rank 0 does.
template <class F>
void at_first(F&& f) {
  together([&] {
    if (first()) f();
  });
}

// For an error that all ranks throw, since it follows from what all of them know.
Error known_to_all(Error error);

// Whether all ranks are known to be at the same place: after an error, whether they have agreed on it.
bool in_step();

}  // namespace qkgpt::ranks
