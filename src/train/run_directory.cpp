#include "train/run_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>

#include "base/file.h"
#include "base/text.h"

namespace qkgpt {
namespace {

bool is_step_file(const std::string& name) {
  constexpr std::string_view head = "step_", tail = ".safetensors";
  if (name.size() < head.size() + 8 + tail.size() || !name.starts_with(head) || !name.ends_with(tail)) return false;
  const auto digits = name.substr(head.size(), name.size() - head.size() - tail.size());
  return digits.find_first_not_of("0123456789") == std::string::npos;
}

std::string lock_text() {
  char host[256] = "unknown host";
  gethostname(host, sizeof host - 1);
  char time[32];
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  std::strftime(time, sizeof time, "%Y-%m-%d %H:%M:%S UTC", &utc);
  return cat("process ", static_cast<Index>(getpid()), " on ", std::string(host), " since ", std::string(time), "\n");
}

// The name still belongs to the file that was locked: a former holder may have removed it in between.
bool still_named(int fd, const std::string& path) {
  struct stat by_fd {
  }, by_name{};
  return fstat(fd, &by_fd) == 0 && stat(path.c_str(), &by_name) == 0 && by_fd.st_ino == by_name.st_ino &&
         by_fd.st_dev == by_name.st_dev;
}

}  // namespace

RunDirectory::RunDirectory(const std::string& path) : path_(path) {
  make_directories(path);
  lock();
  for (const char* name : {".last.safetensors.tmp", ".best.safetensors.tmp", ".config.json.tmp"})
    remove_file(file(name));
  for (const auto& entry : std::filesystem::directory_iterator(path)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(".step_") && name.ends_with(".tmp") && is_step_file(name.substr(1, name.size() - 5)))
      remove_file(file(name));
  }
}

void RunDirectory::lock() {
  const std::string name = file(".lock");
  for (;;) {
    lock_ = open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (lock_ < 0)
      throw Error(ErrorKind::disk, cat(name, ": cannot be created: ", std::string_view(std::strerror(errno)),
                                       "; a run directory must be writable"));
    if (flock(lock_, LOCK_EX | LOCK_NB) == 0) {
      if (still_named(lock_, name)) break;
      close(lock_);
      continue;
    }
    if (errno == EINTR) {
      close(lock_);
      continue;
    }
    if (errno != EWOULDBLOCK) return;  // no locks on this file system: go on without
    char holder[300] = {};
    const auto n = pread(lock_, holder, sizeof holder - 1, 0);
    close(lock_);
    lock_ = -1;
    const std::string who = n > 1 ? std::string(holder, static_cast<std::size_t>(n) - 1) : "another process";
    throw Error(ErrorKind::busy, cat(path_, ": in use by ", who, "; wait for it or choose another out_dir"));
  }
  locked_ = true;
  const std::string text = lock_text();
  if (ftruncate(lock_, 0) != 0 || pwrite(lock_, text.data(), text.size(), 0) < 0) return;  // only a hint for others
}

RunDirectory::~RunDirectory() {
  if (locked_) unlink(file(".lock").c_str());
  if (lock_ >= 0) close(lock_);
}

std::string RunDirectory::step(Index n) const {
  std::string digits = std::to_string(n);
  digits.insert(0, digits.size() < 8 ? 8 - digits.size() : 0, '0');
  return file("step_" + digits + ".safetensors");
}

void RunDirectory::clear() const {
  const std::vector<std::string> checkpoints = checkpoint_files(path_);
  for (const std::string& name : checkpoints) remove_file(file(name));
  if (!checkpoints.empty()) sync_directory(path_);  // before the rows that belong to them
  for (const std::string& name : {metrics(), config(), samples()}) remove_file(name);
}

std::vector<std::string> checkpoint_files(const std::string& directory) {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
    const std::string name = entry.path().filename().string();
    const bool known = name == "last.safetensors" || name == "best.safetensors" || is_step_file(name);
    if (known && entry.is_regular_file(error)) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace qkgpt
