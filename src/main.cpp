#include <unistd.h>
#include <cstdlib>

#include "cli/commands.h"

namespace {

// GNU's OpenMP lets a waiting thread spin for long before it sleeps. Where another program wants the same core,
// a spinning thread holds up the one it waits for by whole time slices, and an update takes fifty times as long.
// The runtime reads the length of the spin when it is loaded, so it is set and the program starts once more.
void shorten_waiting(char** argv) {
#ifdef __linux__
  if (std::getenv("GOMP_SPINCOUNT") || std::getenv("OMP_WAIT_POLICY")) return;
  setenv("GOMP_SPINCOUNT", "3000", 1);
  execv("/proc/self/exe", argv);  // returns only where it failed: then as before
#else
  (void)argv;
#endif
}

}  // namespace

int main(int argc, char** argv) {
  shorten_waiting(argv);
  return qkgpt::run_program(argc, argv);
}
