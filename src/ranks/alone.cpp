// Ranks without MPI: there is one.
#include <cstdlib>
#include <cstring>

#include "base/text.h"
#include "ranks/ranks.h"

namespace qkgpt::ranks {

const bool with_mpi = false;

void start() {
  if (launched() > 1)
    throw Error(ErrorKind::usage, cat("a launcher started ", launched(),
                                      " processes, and this build has one; build with -DQKGPT_MPI=ON to train on "
                                      "several, or start it without the launcher"));
}
void finish() {}
void abandon(int code) { std::_Exit(code); }

int rank() { return 0; }
int count() { return 1; }
void broadcast(void*, Index, int) {}
void gather(const void* mine, Index bytes, void* all) { std::memcpy(all, mine, static_cast<std::size_t>(bytes)); }
void exchange(int, const float*, Index, float*, Index) { check(false, "one rank has no partner"); }

}  // namespace qkgpt::ranks
