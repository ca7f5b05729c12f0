// Ranks by MPI. Only data is moved; what is added is added elsewhere, in an order of ours.
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "base/signals.h"
#include "base/text.h"
#include "ranks/ranks.h"

namespace qkgpt::ranks {
namespace {

constexpr Index most_bytes = Index{1} << 30;  // of one message: MPI counts in int
bool started = false;
int my_rank = 0, all_ranks = 1;

// The others do not know what happened here and may wait for ever: no exception.
void require(int code) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  std::fputs(cat("rank ", my_rank, ": ", std::string_view(text), "; ", std::string_view(lost), "\n").c_str(), stderr);
  abandon(static_cast<int>(ErrorKind::unexpected));
}

// A waiting rank soon leaves its core to those who work. `n` requests, all of them done at the end.
void wait(int n, MPI_Request* requests) {
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  bool told = !first();
  for (int done = 0, turn = 0;; ++turn) {
    require(MPI_Testall(n, requests, &done, MPI_STATUSES_IGNORE));
    if (done) return;
    if (turn < 100) continue;
    std::this_thread::sleep_for(std::chrono::microseconds(20));
    if (!told && stop_signal() && Clock::now() - begin > std::chrono::milliseconds(500)) {
      told = true;  // a launcher that has lost a rank tells the others to stop
      std::fputs(cat(stop_signal_name(), " while waiting for other ranks; if none answers, ", lost, "\n").c_str(),
                 stderr);
    }
  }
}

}  // namespace

const bool with_mpi = true;

void start() {
  if (launched() == 1) return;
  int provided = 0;
  require(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided));
  started = true;
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  MPI_Comm_rank(MPI_COMM_WORLD, &my_rank);
  MPI_Comm_size(MPI_COMM_WORLD, &all_ranks);
  if (provided < MPI_THREAD_SERIALIZED) {
    std::fputs("MPI: this library lets one thread only call it; qkgpt needs MPI_THREAD_SERIALIZED\n", stderr);
    abandon(static_cast<int>(ErrorKind::unexpected));
  }
  if (all_ranks != launched()) {
    std::fputs("MPI: the launcher is of another MPI than this build; use the mpirun that belongs to it\n", stderr);
    abandon(static_cast<int>(ErrorKind::usage));
  }
}

void finish() {
  if (started) MPI_Finalize();
}

void abandon(int code) {
  std::fflush(nullptr);
  if (started) MPI_Abort(MPI_COMM_WORLD, code);
  std::_Exit(code);
}

int rank() { return my_rank; }
int count() { return all_ranks; }

void broadcast(void* data, Index bytes, int root) {
  if (all_ranks == 1) return;
  for (auto* at = static_cast<char*>(data); bytes > 0;) {
    const Index n = std::min(bytes, most_bytes);
    MPI_Request request;
    require(MPI_Ibcast(at, static_cast<int>(n), MPI_BYTE, root, MPI_COMM_WORLD, &request));
    wait(1, &request);
    at += n, bytes -= n;
  }
}

void gather(const void* mine, Index bytes, void* all) {
  MPI_Request request;
  if (all_ranks == 1) {
    std::copy_n(static_cast<const char*>(mine), bytes, static_cast<char*>(all));
    return;
  }
  const auto n = static_cast<int>(bytes);
  require(MPI_Iallgather(mine, n, MPI_BYTE, all, n, MPI_BYTE, MPI_COMM_WORLD, &request));
  wait(1, &request);
}

void exchange(int partner, const float* out, Index n_out, float* in, Index n_in) {
  constexpr Index most = most_bytes / static_cast<Index>(sizeof(float));
  while (n_out > 0 || n_in > 0) {
    const Index o = std::min(n_out, most), i = std::min(n_in, most);
    MPI_Request requests[2];
    require(MPI_Irecv(in, static_cast<int>(i), MPI_FLOAT, partner, 0, MPI_COMM_WORLD, &requests[0]));
    require(MPI_Isend(out, static_cast<int>(o), MPI_FLOAT, partner, 0, MPI_COMM_WORLD, &requests[1]));
    wait(2, requests);
    out += o, n_out -= o, in += i, n_in -= i;
  }
}

}  // namespace qkgpt::ranks
