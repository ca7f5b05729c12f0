#include "train/threads.h"

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <thread>

#include "base/text.h"
#include "kernels/parallel.h"

namespace qkgpt {
namespace {

// CPUs that the container's quota allows, 0 for no limit (cgroup v2, then v1).
double cpu_quota() {
  double quota = 0.0, period = 0.0;
  if (std::ifstream v2("/sys/fs/cgroup/cpu.max"); v2 >> quota >> period && period > 0) return quota / period;
  std::ifstream q("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"), p("/sys/fs/cgroup/cpu/cpu.cfs_period_us");
  if (q >> quota && p >> period && quota > 0 && period > 0) return quota / period;
  return 0.0;
}

double number_in(const char* path) {
  double x = 0.0;
  std::ifstream file(path);
  return file >> x ? x : 0.0;  // "max" is no number
}

}  // namespace

Threads choose_threads(Index wanted) {
  if constexpr (!has_openmp)
    return {1, "1 thread (built without OpenMP)",
            wanted > 1 ? "threads: built without OpenMP; one thread is used" : ""};
  const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  if (wanted > 0) {
    const int count = static_cast<int>(std::min<Index>(wanted, cores));
    return {count, cat(count, count == 1 ? " thread" : " threads", " (as asked)"),
            wanted > cores ? cat("threads: ", wanted, " asked for, ", cores,
                                 " used, one for each core; more would be slower and change no result")
                           : ""};
  }
  int count = thread_count();
  const char* env = std::getenv("OMP_NUM_THREADS");
  std::string why = env && *env ? "OMP_NUM_THREADS" : "OpenMP";
  const double quota = cpu_quota();
  if (quota > 0.0 && count > std::ceil(quota))
    count = static_cast<int>(std::ceil(quota)), why = "container's CPU limit";
  return {count, cat(count, count == 1 ? " thread (" : " threads (", why, ")"), ""};
}

double available_memory() {
  double available = 0.0;
  std::ifstream info("/proc/meminfo");
  for (std::string key, unit; info >> key && !(key == "MemAvailable:" && info >> available);) std::getline(info, unit);
  available *= 1024.0;
  const double limit = number_in("/sys/fs/cgroup/memory.max"), used = number_in("/sys/fs/cgroup/memory.current");
  if (limit > 0.0 && (available == 0.0 || limit - used < available)) return std::max(limit - used, 1.0);
  return available;
}

}  // namespace qkgpt
