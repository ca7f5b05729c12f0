#include "base/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <vector>

#include "base/signals.h"
#include "base/text.h"

namespace qkgpt {
namespace {

std::string reason(int error) { return std::generic_category().message(error); }

[[noreturn]] void fail(const char* call) { throw std::system_error(errno, std::generic_category(), call); }

struct Descriptor {
  explicit Descriptor(int f) : fd(f) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
  const int fd;
};

// What to do when a signal interrupts a call: go on, or end where a stop was asked for. A save always goes on.
using OnSignal = void (*)();
constexpr OnSignal go_on = [] {};

int open_again_if_interrupted(const char* path, int flags, OnSignal on_signal = go_on) {
  for (;;) {
    const int fd = ::open(path, flags | O_CLOEXEC);
    if (fd >= 0 || errno != EINTR) return fd;
    on_signal();
  }
}

std::string directory_of(const std::string& path) {
  const std::size_t slash = path.find_last_of('/');
  return slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
}

std::string temporary_of(const std::string& path) {
  const std::size_t name = path.find_last_of('/') + 1;  // npos + 1 == 0
  return cat(path.substr(0, name), ".", path.substr(name), ".tmp");
}

std::size_t size_of(int fd) {
  struct stat status;
  if (::fstat(fd, &status) != 0) fail("fstat");
  return static_cast<std::size_t>(std::max<off_t>(status.st_size, 0));
}

// Reads on from the end of `content` until there are `most` bytes, or to the end.
void read_on(int fd, std::string& content, std::size_t most, OnSignal on_signal) {
  std::size_t size = content.size();
  for (content.resize(std::min(std::max(size_of(fd), size) + 1, most));;) {
    if (size == content.size()) content.resize(std::min(2 * size, most));  // it grew, or its size is unknown (a pipe)
    const std::size_t wanted = std::min<std::size_t>(content.size() - size, 1u << 26);
    const ssize_t n = ::read(fd, content.data() + size, wanted);
    on_signal();
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail("read");
    if (n == 0) return content.resize(size);
    size += static_cast<std::size_t>(n);
  }
}

// So that a full disk shows before anything is written; a file system that cannot reserve is no fault.
void reserve_space([[maybe_unused]] int fd, [[maybe_unused]] Index size) {
#ifdef __linux__
  if (size == 0) return;
  const int error = ::posix_fallocate(fd, 0, size);
  if (error == ENOSPC || error == EDQUOT || error == EFBIG || error == EIO) errno = error, fail("reserve");
#endif
}

void write_pieces(int fd, std::span<const Bytes> pieces, const SaveCalls& calls) {
  for (Bytes rest : pieces)
    while (!rest.empty()) {
      const std::ptrdiff_t n = calls.write(fd, rest.data(), std::min<std::size_t>(rest.size(), 1u << 30));
      if (n < 0 && errno == EINTR) continue;
      if (n == 0) errno = EIO;
      if (n <= 0) fail("write");
      rest = rest.subspan(static_cast<std::size_t>(n));
    }
}

// Bytes read at `offset`: `size`, or fewer at the end of the file.
std::size_t read_at(int fd, std::byte* to, std::size_t size, Index offset, const SaveCalls& calls) {
  std::size_t done = 0;
  while (done < size) {
    const std::ptrdiff_t n = calls.read(fd, to + done, size - done, offset + static_cast<Index>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail("read back");
    if (n == 0) break;
    done += static_cast<std::size_t>(n);
  }
  return done;
}

void compare_pieces(int fd, std::span<const Bytes> pieces, const SaveCalls& calls) {
  std::vector<std::byte> chunk(1u << 18);
  Index offset = 0;
  for (Bytes rest : pieces)
    while (!rest.empty()) {
      const std::size_t size = std::min(rest.size(), chunk.size());
      if (read_at(fd, chunk.data(), size, offset, calls) != size || std::memcmp(chunk.data(), rest.data(), size) != 0)
        throw std::runtime_error("read back: the file does not hold what was written");
      rest = rest.subspan(size), offset += static_cast<Index>(size);
    }
  if (read_at(fd, chunk.data(), 1, offset, calls) != 0)
    throw std::runtime_error("read back: the file is longer than what was written");
}

// Leaves a complete, synced and verified file at `temporary`; a leftover there is replaced.
void write_temporary(const std::string& temporary, std::span<const Bytes> pieces, const SaveCalls& calls) {
  if (calls.remove(temporary.c_str()) != 0 && errno != ENOENT) fail("remove the old temporary file");
  const int fd = calls.create(temporary.c_str());
  if (fd < 0) fail("create");
  try {
    Index size = 0;
    for (const Bytes piece : pieces) size += static_cast<Index>(piece.size());
    reserve_space(fd, size);
    write_pieces(fd, pieces, calls);
    if (calls.sync(fd) != 0) fail("sync");  // final: the kernel may have dropped the pages and reports it once
    compare_pieces(fd, pieces, calls);
  } catch (...) {
    calls.close(fd);
    throw;
  }
  if (calls.close(fd) != 0 && errno != EINTR) fail("close");
}

void sync_names(const std::string& directory, const SaveCalls& calls) {
  const Descriptor d(open_again_if_interrupted(directory.c_str(), O_RDONLY | O_DIRECTORY));
  if (d.fd < 0) fail("open the directory");
  if (calls.sync(d.fd) != 0 && errno != EINVAL) fail("sync the directory");  // EINVAL: directories need no sync here
}

// After a rename that may not last: brings back the old content, or removes the file where there was none.
bool put_back(const std::string& path, int old_fd, bool existed, const SaveCalls& calls) {
  try {
    if (!existed) return calls.remove(path.c_str()) == 0;
    if (old_fd < 0) return false;
    const std::string temporary = temporary_of(path);
    std::string content;
    read_on(old_fd, content, std::string::npos, go_on);
    const Bytes piece = as_bytes(content);
    write_temporary(temporary, {&piece, 1}, calls);
    return calls.rename(temporary.c_str(), path.c_str()) == 0;
  } catch (const std::exception&) {
    return false;
  }
}

int sync_descriptor(int fd) {
#ifdef F_FULLFSYNC
  if (::fcntl(fd, F_FULLFSYNC) == 0) return 0;
  if (errno != ENOTSUP && errno != EINVAL) return -1;  // file systems without it have fsync only
#endif
  return ::fsync(fd);
}

}  // namespace

std::string read_file(const std::string& path, Index most) {
  const auto too_much = [](std::string_view, Index) { return false; };
  return read_file(path, most, too_much);
}

std::string read_file(const std::string& path, Index head,
                      const std::function<bool(std::string_view start, Index size)>& wanted) {
  const Descriptor file(open_again_if_interrupted(path.c_str(), O_RDONLY, stop_if_asked));
  try {
    if (file.fd < 0) fail("open");
    std::string content;
    read_on(file.fd, content, static_cast<std::size_t>(head), stop_if_asked);
    if (wanted(content, static_cast<Index>(size_of(file.fd))))
      read_on(file.fd, content, std::string::npos, stop_if_asked);
    return content;
  } catch (const std::system_error& e) {
    throw Error(ErrorKind::usage,
                cat(path, ": cannot be read: ", reason(e.code().value()), "; give the path of a readable file"));
  }
}

SaveCalls system_save_calls() {
  return {
      .create = [](const char* path) { return ::open(path, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0666); },
      .write = [](int fd, const void* from, std::size_t size) { return ::write(fd, from, size); },
      .sync = sync_descriptor,
      .read = [](int fd, void* to, std::size_t size, Index offset) { return ::pread(fd, to, size, offset); },
      .close = [](int fd) { return ::close(fd); },
      .rename = [](const char* from, const char* to) { return ::rename(from, to); },
      .remove = [](const char* path) { return ::unlink(path); },
  };
}

void write_durably(const std::string& path, std::span<const Bytes> pieces, const SaveCalls& calls) {
  const std::string temporary = temporary_of(path);
  const Descriptor old(open_again_if_interrupted(path.c_str(), O_RDONLY | O_NONBLOCK));
  const bool existed = old.fd >= 0 || errno != ENOENT;
  bool renamed = false;
  try {
    write_temporary(temporary, pieces, calls);
    if (calls.rename(temporary.c_str(), path.c_str()) != 0) fail("rename");
    renamed = true;
    sync_names(directory_of(path), calls);
  } catch (const std::exception& e) {
    const bool as_before = !renamed || put_back(path, old.fd, existed, calls);
    calls.remove(temporary.c_str());
    throw Error(ErrorKind::disk, cat(path, ": could not save: ", e.what(), "; ",
                                     !as_before ? "the new content is there, but a power cut may undo it"
                                     : existed  ? "the previous content is still there, unchanged"
                                                : "no file was left there"));
  }
}

void sync_directory(const std::string& path) {
  try {
    sync_names(path, system_save_calls());
  } catch (const std::system_error& e) {
    throw Error(ErrorKind::disk,
                cat(path, ": cannot be synced: ", reason(e.code().value()), "; give a directory on a sound disk"));
  }
}

void take_standard_descriptors() {
  int fd;
  do fd = ::open("/dev/null", O_RDONLY);  // the lowest free number
  while (fd >= 0 && fd <= STDERR_FILENO);
  if (fd >= 0) ::close(fd);
}

bool exists(const std::string& path) {
  struct stat status;
  return ::stat(path.c_str(), &status) == 0;
}

bool is_directory(const std::string& path) {
  struct stat status;
  return ::stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
}

Index file_size(const std::string& path) {
  struct stat status;
  if (::stat(path.c_str(), &status) != 0)
    throw Error(ErrorKind::usage, cat(path, ": cannot be read: ", reason(errno), "; give the path of a readable file"));
  return static_cast<Index>(status.st_size);
}

void make_directories(const std::string& path) {
  for (std::size_t end = 0; end != std::string::npos;) {
    end = path.find('/', end + 1);
    const std::string part = path.substr(0, end);
    if (is_directory(part)) continue;
    if (exists(part))
      throw Error(ErrorKind::usage, cat(path, ": ", part == path ? "is" : part + " is",
                                        " a file; give a path whose parts are directories"));
    try {
      if (::mkdir(part.c_str(), 0777) != 0 && errno != EEXIST) fail("mkdir");
      sync_names(directory_of(part), system_save_calls());
    } catch (const std::system_error& e) {
      throw Error(ErrorKind::disk, cat(path, ": cannot create the directory ", part, ": ", reason(e.code().value()),
                                       "; give a path in a writable directory"));
    }
  }
}

bool remove_file(const std::string& path) {
  if (::unlink(path.c_str()) == 0) return true;
  if (errno == ENOENT) return false;
  throw Error(ErrorKind::disk, cat(path, ": cannot be removed: ", reason(errno), "; remove it by hand"));
}

Index free_bytes(const std::string& path) {
  struct statvfs status;
  if (::statvfs(path.c_str(), &status) != 0)
    throw Error(ErrorKind::disk, cat(path, ": free space is unknown: ", reason(errno), "; give a path that exists"));
  return static_cast<Index>(status.f_bavail) * static_cast<Index>(status.f_frsize);
}

}  // namespace qkgpt
