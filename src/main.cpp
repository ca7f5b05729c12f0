#include <unistd.h>
#include <cstdlib>
#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

#include "base/cpu.h"
#include "cli/commands.h"

namespace {

bool cpu_has(const qkgpt::CpuFeature& feature) {
#if defined(__x86_64__)
  unsigned word[4] = {};
  __get_cpuid_count(feature.leaf, feature.subleaf, &word[0], &word[1], &word[2], &word[3]);
  if (!(word[feature.word] >> feature.bit & 1)) return false;
  if (feature.vector_bits == 256) return __builtin_cpu_supports("avx");
  if (feature.vector_bits == 512) return __builtin_cpu_supports("avx512f");
  return true;
#elif defined(__aarch64__) && defined(__linux__)
  return getauxval(feature.leaf) >> feature.bit & 1;
#else
  return feature.name;  // no way to ask: taken as given
#endif
}

// Says what is missing instead of dying of an illegal instruction. The library is compiled for a certain CPU and this
// file for any (CMakeLists.txt), so only what stands here may run before the check: no constructor of a static object
// (they have priority 65535, and 101 is the first that is free to use) and no inline function of a header that the
// library includes too, of which the linker may take the library's copy.
[[gnu::constructor(101)]] void require_cpu() {
#if defined(__x86_64__)
  __builtin_cpu_init();
#endif
  int lacking = 0;
  for (const qkgpt::CpuFeature* f = qkgpt::cpu_needs; f->name; ++f) lacking += !cpu_has(*f);
  if (lacking == 0) return;
  char line[1024];
  std::size_t size = 0;
  const auto add = [&](const char* text) {
    for (; *text && size < sizeof line; ++text) line[size++] = *text;
  };
  add("qkgpt: this build needs ");
  for (const qkgpt::CpuFeature* f = qkgpt::cpu_needs; f->name; ++f) {
    if (cpu_has(*f)) continue;
    add(f->name);
    --lacking;
    add(lacking > 1 ? ", " : lacking == 1 ? " and " : "");
  }
  add(", which this CPU lacks; build it here with: cmake --preset release && cmake --build build\n");
  if (write(STDERR_FILENO, line, size) < 0) {
    // The exit code still says it.
  }
  _exit(1);
}

// GNU's OpenMP lets a waiting thread spin for long before it sleeps. Where another program wants the same core,
// a spinning thread holds up the one it waits for by whole time slices, and an update takes fifty times as long.
// The runtime reads the length of the spin when it is loaded, so it is set and the program starts once more; not where
// it was told to bind threads: it has bound this one to a core already, and the new program would inherit that core
// as all there is.
void shorten_waiting(char** argv) {
#ifdef __linux__
  for (const char* told : {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY"})
    if (std::getenv(told)) return;
  setenv("GOMP_SPINCOUNT", "3000", 1);
  char path[4096];  // and not the link itself, which `top` and `pkill` would take for the program's name
  const ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
  if (length <= 0) return;
  path[length] = '\0';
  execv(path, argv);  // returns only where it failed: then as before
#else
  (void)argv;
#endif
}

}  // namespace

int main(int argc, char** argv) {
  shorten_waiting(argv);
  return qkgpt::run_program(argc, argv);
}
