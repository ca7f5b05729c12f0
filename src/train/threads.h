// How many threads to use, and why; which ranks share a machine.
#pragma once
#include <string>

#include "base/check.h"

namespace qkgpt {

struct Threads {
  int count;
  std::string why;         // for the report: "2 threads (OpenMP)"
  std::string warning;     // empty, or what the user should know
  std::string ranks = {};  // for the report: "2 ranks: alpha 1 x 4 threads, beta 1 x 8 threads"; empty with one
};

// wanted = 0: what OpenMP gives (OMP_NUM_THREADS, affinity), within the container's CPU limit. Otherwise as many as
// wanted, but no more than there are cores: threads that wait for a core slow the others down. Together: ranks on one
// machine share the cores that they may use.
Threads choose_threads(Index wanted);

// Bytes of memory that this process may still take: free memory, or what is left of the container's limit;
// 0 when unknown.
double available_memory();

}  // namespace qkgpt
