#include "base/append_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/file.h"
#include "base/text.h"

namespace qkgpt {
namespace {

[[noreturn]] void fail(const std::string& path, const char* what) {
  throw Error(ErrorKind::disk, cat(path, ": cannot be ", std::string_view(what), ": ",
                                   std::string_view(std::strerror(errno)), "; a run directory must be writable"));
}

}  // namespace

AppendFile::AppendFile(const std::string& path) : path_(path) {
  const bool is_new = !exists(path);
  do fd_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  while (fd_ < 0 && errno == EINTR);
  if (fd_ < 0) fail(path, "opened");
  const std::string parent = std::filesystem::path(path).parent_path().string();
  if (is_new) sync_directory(parent.empty() ? "." : parent);
}

AppendFile::~AppendFile() { ::close(fd_); }

void AppendFile::cut(Index size) {
  if (::ftruncate(fd_, static_cast<off_t>(size)) != 0) fail(path_, "cut");
}

bool AppendFile::append(std::string_view record) {
  struct stat before {};
  if (::fstat(fd_, &before) != 0) return false;
  ssize_t written;
  do written = ::write(fd_, record.data(), record.size());
  while (written < 0 && errno == EINTR);
  if (written == static_cast<ssize_t>(record.size())) return true;
  if (written > 0 && ::ftruncate(fd_, before.st_size) != 0) return false;  // no half records: what came through goes
  return false;
}

bool AppendFile::sync() { return ::fsync(fd_) == 0; }

}  // namespace qkgpt
