// How many threads to use, and why.
#pragma once
#include <string>

#include "base/check.h"

namespace qkgpt {

struct Threads {
  int count;
  std::string why;      // for the report: "2 threads (OpenMP)"
  std::string warning;  // empty, or what the user should know
};

// wanted = 0: what OpenMP gives (OMP_NUM_THREADS, affinity), within the container's CPU limit. Otherwise as many as
// wanted, but no more than there are cores: threads that wait for a core slow the others down.
Threads choose_threads(Index wanted);

// Bytes of memory that this process may still take: free memory, or what is left of the container's limit;
// 0 when unknown.
double available_memory();

}  // namespace qkgpt
