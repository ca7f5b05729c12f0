// A run directory and the lock that gives it to one process.
#pragma once
#include <string>
#include <vector>

#include "base/check.h"

namespace qkgpt {

class RunDirectory {
 public:
  // Creates the directory where it is missing, takes the lock and removes a leftover temporary file.
  // Error(busy) naming the process that holds the lock; Error(disk) when the directory cannot be made.
  explicit RunDirectory(const std::string& path);
  ~RunDirectory();
  RunDirectory(const RunDirectory&) = delete;
  RunDirectory& operator=(const RunDirectory&) = delete;

  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }
  std::string last() const { return file("last.safetensors"); }
  std::string best() const { return file("best.safetensors"); }
  std::string step(Index step) const;  // step_00000250.safetensors
  std::string metrics() const { return file("metrics.jsonl"); }
  std::string config() const { return file("config.json"); }
  std::string samples() const { return file("samples.txt"); }

  // False where the file system has no locks: nothing keeps a second process out.
  bool locked() const { return locked_; }

  // Removes the files of an earlier run, nothing else. After a power cut half-way, what is left is still that run.
  void clear() const;

 private:
  void lock();

  std::string path_;
  int lock_ = -1;
  bool locked_ = false;
};

// Names of the checkpoint files in a directory: last, best, step_XXXXXXXX in ascending order; empty when there
// is no such directory.
std::vector<std::string> checkpoint_files(const std::string& directory);

}  // namespace qkgpt
