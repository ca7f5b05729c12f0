// Whole files: read them, and save them so that "saved" means durable.
// Every error names the path and the reason. POSIX: Linux and macOS.
#pragma once
#include <cstddef>
#include <functional>
#include <limits>
#include <span>
#include <string>

#include "base/bytes.h"
#include "base/check.h"

namespace qkgpt {

// A file's bytes, or its first `most`. Error(usage) when it is missing, a directory or unreadable.
// Ends early when a stop signal came (base/signals.h): a pipe may keep us waiting.
std::string read_file(const std::string& path, Index most = std::numeric_limits<Index>::max());

// The same, all from one opened file, so that a rename meanwhile mixes no two files: its first `head` bytes and its
// size go to `wanted`, which says whether to read the rest.
std::string read_file(const std::string& path, Index head,
                      const std::function<bool(std::string_view start, Index size)>& wanted);

// The system calls a save is made of, so that tests can let any one fail. Each returns what the call of
// its name returns, -1 with errno set on failure.
struct SaveCalls {
  std::function<int(const char* path)> create;  // O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC
  std::function<std::ptrdiff_t(int fd, const void* from, std::size_t size)> write;
  std::function<int(int fd)> sync;  // to the medium: F_FULLFSYNC on macOS; of directories too
  std::function<std::ptrdiff_t(int fd, void* to, std::size_t size, Index offset)> read;
  std::function<int(int fd)> close;
  std::function<int(const char* from, const char* to)> rename;
  std::function<int(const char* path)> remove;
};
SaveCalls system_save_calls();

// Replaces `path` by the concatenated pieces. On return the content is on the disk, was read back and
// compared, and would survive a power cut. Error(disk): the temporary file is gone and `path` is what it
// was before; the message says so, or says what else is left where even that failed.
// The temporary is DIRECTORY/.NAME.tmp; a leftover of that name is removed first, so only one process
// may save there at a time: callers hold the run directory's lock.
void write_durably(const std::string& path, std::span<const Bytes> pieces,
                   const SaveCalls& calls = system_save_calls());

// Makes new, renamed and removed names in a directory last. Error(disk).
void sync_directory(const std::string& path);

// For a program that was started without stdin, stdout or stderr: takes their numbers, so that no file gets one and
// receives what is meant for the terminal. Writing there is an error.
void take_standard_descriptors();

bool exists(const std::string& path);
bool is_directory(const std::string& path);
Index file_size(const std::string& path);  // bytes; Error(usage) when there is no such file

// Creates `path` and its missing parents, each entry durable. Error(usage) when a part of it is a file,
// Error(disk) when it cannot be created. Nothing happens when it exists.
void make_directories(const std::string& path);

// True when a file was removed, false when there was none; Error(disk) otherwise.
bool remove_file(const std::string& path);

// Bytes that an ordinary user may still write on the file system that holds `path`, which exists.
Index free_bytes(const std::string& path);

}  // namespace qkgpt
