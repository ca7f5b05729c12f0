#include "ranks/ranks.h"

#include <algorithm>
#include <cstdlib>
#include <new>

#include "base/signals.h"

namespace qkgpt::ranks {
namespace {
bool agreed = false;
}

int launched() {
  // Open MPI; MPICH and its kin; a step of Slurm
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"})
    if (const char* value = std::getenv(name)) return std::max(1, std::atoi(value));
  return 1;
}

void share(std::string& bytes, int root) {
  auto size = static_cast<Index>(bytes.size());
  broadcast(&size, static_cast<Index>(sizeof size), root);
  bytes.resize(static_cast<std::size_t>(size));
  broadcast(bytes.data(), size, root);
}

void stop_if_asked() {
  for (const int signal : gathered(stop_signal()))
    if (signal) {
      ask_to_stop(signal);
      throw Interrupted{};
    }
}

bool take_save_request() {
  const std::vector<int> asked = gathered(static_cast<int>(qkgpt::take_save_request()));
  return std::any_of(asked.begin(), asked.end(), [](int a) { return a != 0; });
}

Outcome outcome_of(void (*call)(void*), void* f) {
  try {
    call(f);
    return {};
  } catch (const Interrupted&) {
    return {Outcome::interrupted, stop_signal()};
  } catch (const Error& e) {
    return {Outcome::failed, static_cast<int>(e.kind()), e.what()};
  } catch (const std::bad_alloc&) {
    return {Outcome::failed, static_cast<int>(ErrorKind::unexpected), "memory: not enough on a rank's machine"};
  } catch (const std::exception& e) {
    return {Outcome::failed, static_cast<int>(ErrorKind::unexpected), e.what()};
  }
}

void agree(const Outcome& mine) {
  const std::vector<int> hows = gathered(static_cast<int>(mine.how));
  const auto worst = std::find_if(hows.begin(), hows.end(), [](int how) { return how != Outcome::well; });
  if (worst == hows.end()) return;
  const auto root = static_cast<int>(worst - hows.begin());
  Outcome theirs = mine;
  broadcast(&theirs.code, static_cast<Index>(sizeof theirs.code), root);
  share(theirs.message, root);
  if (*worst == Outcome::interrupted) {
    ask_to_stop(theirs.code);
    throw Interrupted{};
  }
  agreed = true;
  throw Error(static_cast<ErrorKind>(theirs.code), theirs.message);
}

Error known_to_all(Error error) {
  agreed = true;
  return error;
}

bool in_step() { return count() == 1 || agreed; }

}  // namespace qkgpt::ranks
