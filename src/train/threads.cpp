#include "train/threads.h"

#ifdef __linux__
#include <sched.h>
#endif
#include <unistd.h>

#include <bitset>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <thread>

#include "base/text.h"
#include "kernels/parallel.h"
#include "ranks/ranks.h"

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

// Where a rank runs.
struct Seat {
  char host[256] = "";
  std::bitset<1024> cores;  // that it may use
  int online = 0;           // of its machine
  int threads = 1;          // that it has chosen
  bool beside(const Seat& other) const { return std::string_view(host) == other.host; }
};

Seat my_seat() {
  Seat s;
  gethostname(s.host, sizeof s.host - 1);
  s.online = static_cast<int>(std::max(1L, sysconf(_SC_NPROCESSORS_ONLN)));
#ifdef __linux__
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) == 0) {
    for (std::size_t cpu = 0; cpu < s.cores.size(); ++cpu) s.cores[cpu] = CPU_ISSET(cpu, &allowed);
    return s;
  }
#endif
  for (std::size_t cpu = 0; cpu < static_cast<std::size_t>(s.online) && cpu < s.cores.size(); ++cpu)
    s.cores[cpu] = true;
  return s;
}

// A core that n ranks may use is an n-th core to each of them.
int share_of_cores(const Seat& mine, const std::vector<Seat>& all) {
  double cores = 0.0;
  for (std::size_t cpu = 0; cpu < mine.cores.size(); ++cpu)
    if (mine.cores[cpu])
      cores += 1.0 / static_cast<double>(std::count_if(all.begin(), all.end(),
                                                       [&](const Seat& s) { return s.beside(mine) && s.cores[cpu]; }));
  return std::max(1, static_cast<int>(cores + 1e-6));
}

void tell(const std::vector<Seat>& all, Threads& t) {
  for (std::size_t i = 0; i < all.size(); ++i) {
    const Seat& s = all[i];
    int ranks = 0, threads = 0;
    bool told = false;
    std::bitset<1024> cores;
    for (std::size_t j = 0; j < all.size(); ++j)
      if (all[j].beside(s)) told = told || j < i, ++ranks, threads += all[j].threads, cores |= all[j].cores;
    if (told) continue;
    const std::string_view host = s.host;
    t.ranks += cat(t.ranks.empty() ? cat(static_cast<Index>(all.size()), " ranks: ") : std::string(", "), host, " ",
                   ranks, " x ", s.threads, s.threads == 1 ? " thread" : " threads");
    const auto usable = static_cast<int>(cores.count());
    std::string warning;
    if (threads > usable)
      warning =
          cat("threads: ", threads, " threads of ", ranks, " ranks share ", usable, usable == 1 ? " core" : " cores",
              " of ", host, "; fewer ranks or threads would be faster and change no result");
    else if (threads < s.online && usable < s.online)
      warning = cat("threads: the launcher lets ", ranks, " ranks on ", host, " use ", usable, " of ", s.online,
                    " cores; mpirun --bind-to none lets them use all");
    if (!warning.empty()) t.warning += (t.warning.empty() ? "" : "\n") + warning;
  }
}

Threads among_ranks(Threads t, bool free_to_choose) {
  Seat mine = my_seat();
  if (free_to_choose)
    if (const int share = share_of_cores(mine, ranks::gathered(mine)); share < t.count)
      t.count = share, t.why = cat(share, share == 1 ? " thread" : " threads", " a rank (cores shared by ranks)");
  mine.threads = t.count;
  tell(ranks::gathered(mine), t);
  return t;
}

Threads choose_alone(Index wanted) {
  if constexpr (!has_openmp)
    return {1, "1 thread (built without OpenMP)",
            wanted > 1 ? "threads: built without OpenMP; one thread is used" : ""};
  const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  if (wanted > 0) {
    const int count = static_cast<int>(std::min<Index>(wanted, cores));
    return {count, cat(counted(count, "thread"), wanted > cores ? " (one for each core)" : " (as asked)"),
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

}  // namespace

Threads choose_threads(Index wanted) {
  const Threads t = choose_alone(wanted);
  const char* env = std::getenv("OMP_NUM_THREADS");
  return ranks::count() == 1 ? t : among_ranks(t, wanted == 0 && !(env && *env));
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
