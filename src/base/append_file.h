// A file that grows by whole records: the rows of metrics.jsonl, the samples of samples.txt.
#pragma once
#include <string>
#include <string_view>

#include "base/check.h"

namespace qkgpt {

class AppendFile {
 public:
  // Opens the file for appending; makes it, durably, where there is none. Error(disk).
  explicit AppendFile(const std::string& path);
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  // Keeps the first `size` bytes. Error(disk).
  void cut(Index size);

  // Writes the record, or nothing of it and returns false.
  bool append(std::string_view record);

  // What was appended is on the disk, or false.
  bool sync();

 private:
  std::string path_;
  int fd_;
};

}  // namespace qkgpt
