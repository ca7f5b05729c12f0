#include "base/file.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <fstream>
#include <set>

#include "base/text.h"
#include "catch.h"
#include "expect_error.h"
#include "temp_dir.h"

using namespace qkgpt;
using qkgpt::test::contains;
using qkgpt::test::error_of;
using qkgpt::test::TempDir;
using Names = std::vector<std::string>;

namespace {

void put(const std::string& path, std::string_view content) { std::ofstream(path, std::ios::binary) << content; }

void save(const std::string& path, const std::string& content, const SaveCalls& calls = system_save_calls()) {
  const std::string_view all = content;
  const Bytes pieces[] = {as_bytes(all.substr(0, content.size() / 3)), Bytes(),
                          as_bytes(all.substr(content.size() / 3))};
  write_durably(path, pieces, calls);
}

// Calls that fail from the first-th to the last-th, counted over all kinds together; and what was seen.
struct Faults {
  int first = 0, last = 0, error = EIO;
  int calls = 0;
  std::set<int> failed_syncs = {};  // descriptors
  bool synced_again = false;

  bool hit() {
    ++calls;
    if (calls < first || calls > last) return false;
    errno = error;
    return true;
  }

  SaveCalls table() {
    const SaveCalls real = system_save_calls();
    return {
        .create =
            [=, this](const char* path) {
              const int fd = hit() ? -1 : real.create(path);
              return failed_syncs.erase(fd), fd;  // a new file, whatever had this number before
            },
        .write = [=, this](int fd, const void* from, std::size_t n) { return hit() ? -1 : real.write(fd, from, n); },
        .sync =
            [=, this](int fd) {
              synced_again |= failed_syncs.contains(fd);
              if (!hit()) return real.sync(fd);
              return failed_syncs.insert(fd), -1;
            },
        .read = [=, this](int fd, void* to, std::size_t n, Index at) { return hit() ? -1 : real.read(fd, to, n, at); },
        .close =
            [=, this](int fd) {
              const int result = real.close(fd);  // a failing close gives the descriptor back all the same
              return hit() ? -1 : result;
            },
        .rename = [=, this](const char* from, const char* to) { return hit() ? -1 : real.rename(from, to); },
        .remove = [=, this](const char* path) { return hit() ? -1 : real.remove(path); },
    };
  }
};

const std::string old_content(1000, 'o'), new_content(300000, 'n');

}  // namespace

TEST_CASE("a file that cannot be read is named with the reason", "[unit]") {
  const TempDir dir;
  CHECK_THAT(error_of(ErrorKind::usage, [&] { read_file(dir / "none"); }),
             contains(dir / "none: cannot be read: No such"));
  CHECK_THAT(error_of(ErrorKind::usage, [&] { read_file(dir.path()); }), contains("Is a directory"));
  put(dir / "my text \xC3\xA9.txt", std::string("a\0b", 3));
  CHECK(read_file(dir / "my text \xC3\xA9.txt") == std::string("a\0b", 3));
  CHECK(read_file(dir / "my text \xC3\xA9.txt", 2) == std::string("a\0", 2));
  CHECK(read_file(dir / "my text \xC3\xA9.txt", 4).size() == 3);
  CHECK_THAT(error_of(ErrorKind::usage, [&] { read_file(dir / "my text \xC3\xA9.txt/x"); }),
             contains("Not a directory"));
#ifdef __linux__
  CHECK_THAT(error_of(ErrorKind::usage, [&] { read_file("/proc/self/mem"); }), contains("Input/output error"));
  CHECK(read_file("/proc/self/status").size() > 100);  // its size is said to be 0
#endif
}

TEST_CASE("a saved file holds its pieces and leaves nothing beside it", "[unit]") {
  const TempDir dir;
  for (const std::string& content : {new_content, std::string(), old_content}) {
    put(dir / ".x.tmp", "leftover of a crash, longer than some of the files");
    save(dir / "x", content);
    CHECK((read_file(dir / "x") == content));
    CHECK((dir.names() == Names{"x"}));
  }
}

TEST_CASE("a save syncs the file, reads it back, renames it and syncs the directory, in this order", "[unit]") {
  const TempDir dir;
  std::string order;
  const auto note = [&](const char* what, auto call) {
    return [&order, what, call](auto... arguments) { return order += what, call(arguments...); };
  };
  const SaveCalls real = system_save_calls();
  SaveCalls calls = real;
  calls.sync = [&](int fd) {
    struct stat status;
    order += ::fstat(fd, &status) == 0 && S_ISDIR(status.st_mode) ? "sync directory, " : "sync file, ";
    return real.sync(fd);
  };
  calls.create = note("create, ", real.create);
  calls.write = note("write, ", real.write);
  calls.read = note("read, ", real.read);
  calls.close = note("close, ", real.close);
  calls.rename = note("rename, ", real.rename);
  save(dir / "x", old_content, calls);
  CHECK(order == "create, write, write, sync file, read, read, read, close, rename, sync directory, ");
}

TEST_CASE("a save that fails at any call keeps what was there", "[unit]") {
  int injected = 0;
  for (const bool existed : {true, false}) {
    Faults none;
    const TempDir counting;
    save(counting / "x", new_content, none.table());
    REQUIRE(none.calls >= 10);  // remove, create, write, write, sync, reads, close, rename, sync
    for (int n = 1; n <= none.calls; ++n)
      for (const int error : {EIO, ENOSPC}) {
        INFO("call " << n << ", file existed: " << existed);
        const TempDir dir;
        if (existed) put(dir / "x", old_content);
        Faults faults{.first = n, .last = n, .error = error};
        ++injected;
        CHECK_THAT(error_of(ErrorKind::disk, [&] { save(dir / "x", new_content, faults.table()); }),
                   contains(dir / "x: could not save: ") && contains(error == EIO ? "Input/output" : "No space") &&
                       contains(existed ? "unchanged" : "no file was left"));
        CHECK_FALSE(faults.synced_again);
        CHECK((dir.names() == (existed ? Names{"x"} : Names{})));
        if (existed) CHECK((read_file(dir / "x") == old_content));
        save(dir / "x", new_content);  // the next save is not hindered
        CHECK((read_file(dir / "x") == new_content));
      }
  }
  std::printf("saves: %d faults injected\n", injected);
}

TEST_CASE("a disk that fails from some call on leaves a whole file", "[unit]") {
  for (int n = 1; n <= 12; ++n) {
    const TempDir dir;
    put(dir / "x", old_content);
    Faults faults{.first = n, .last = 1000000};
    const std::string message =
        n <= 10 ? error_of(ErrorKind::disk, [&] { save(dir / "x", new_content, faults.table()); }) : "unchanged";
    const std::string content = read_file(dir / "x");
    INFO(n << " " << message);
    CHECK((content == (message.find("unchanged") != message.npos ? old_content : new_content)));
    CHECK_FALSE(faults.synced_again);
  }
}

TEST_CASE("short and interrupted writes and reads go on", "[unit]") {
  const TempDir dir;
  SaveCalls calls = system_save_calls();
  int n = 0;
  calls.write = [&](int fd, const void* from, std::size_t size) -> std::ptrdiff_t {
    if (++n % 2) return errno = EINTR, -1;
    return ::write(fd, from, std::min<std::size_t>(size, 7));
  };
  calls.read = [&](int fd, void* to, std::size_t size, Index at) -> std::ptrdiff_t {
    if (++n % 3) return errno = EINTR, -1;
    return ::pread(fd, to, std::min<std::size_t>(size, 5), at);
  };
  save(dir / "x", old_content, calls);
  CHECK((read_file(dir / "x") == old_content));
}

TEST_CASE("a medium that returns other bytes than were written is noticed", "[unit]") {
  const TempDir dir;
  put(dir / "x", old_content);
  SaveCalls calls = system_save_calls();
  Index flipped = 0, cut = static_cast<Index>(new_content.size());
  calls.read = [&](int fd, void* to, std::size_t size, Index at) -> std::ptrdiff_t {
    std::ptrdiff_t n = ::pread(fd, to, size, at);
    n = std::min<std::ptrdiff_t>(n, std::max<Index>(cut - at, 0));
    if (flipped >= at && flipped < at + n) static_cast<char*>(to)[flipped - at] ^= 1;
    return n;
  };
  for (flipped = 0; flipped < cut; flipped += 9973)
    CHECK_THAT(error_of(ErrorKind::disk, [&] { save(dir / "x", new_content, calls); }), contains("does not hold"));
  flipped = -1, cut -= 1;
  CHECK_THAT(error_of(ErrorKind::disk, [&] { save(dir / "x", new_content, calls); }), contains("does not hold"));
  calls.read = ::pread;
  calls.sync = [](int fd) { return ::pwrite(fd, "!", 1, static_cast<off_t>(new_content.size())) == 1 ? 0 : -1; };
  CHECK_THAT(error_of(ErrorKind::disk, [&] { save(dir / "x", new_content, calls); }), contains("longer"));
  CHECK((read_file(dir / "x") == old_content));
  CHECK((dir.names() == Names{"x"}));
}

TEST_CASE("a file size limit is a failed save, not a death by SIGXFSZ", "[unit]") {
  const TempDir dir;
  put(dir / "x", old_content);
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{100000, 100000};
    setrlimit(RLIMIT_FSIZE, &limit);
    int code = 1;
    try {
      save(dir / "x", new_content);
    } catch (const Error& e) {
      const std::string message = e.what();
      code = e.kind() == ErrorKind::disk && message.find("File too large; the previous") != message.npos ? 42 : 2;
    }
    _exit(code);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 42);
  CHECK((read_file(dir / "x") == old_content));
  CHECK((dir.names() == Names{"x"}));
}

TEST_CASE("a path that no file can have is an error and leaves nothing", "[unit]") {
  const TempDir dir;
  make_directories(dir / "taken");
  CHECK_THAT(error_of(ErrorKind::disk, [&] { save(dir / "taken", "x"); }), contains("rename: Is a directory"));
  CHECK((dir.names() == Names{"taken"}));
  CHECK_THAT(error_of(ErrorKind::disk, [&] { save(dir / "none/x", "x"); }), contains("No such file"));
}

TEST_CASE("directories are made with their parents", "[unit]") {
  const TempDir dir;
  for (const std::string name : {"a/b/c", "a/b/c", "d/", "e//f", "\xC3\xA9 x"}) {
    make_directories(dir / name);
    CHECK(is_directory(dir / name));
  }
  put(dir / "file", "1234");
  CHECK_FALSE(is_directory(dir / "file"));
  CHECK(exists(dir / "file"));
  CHECK_FALSE(exists(dir / "none"));
  CHECK(file_size(dir / "file") == 4);
  CHECK_THAT(error_of(ErrorKind::usage, [&] { file_size(dir / "none"); }), contains("none: cannot be read: No such"));
  CHECK_THAT(error_of(ErrorKind::usage, [&] { make_directories(dir / "file/x"); }), contains("file is a file"));
  CHECK_THAT(error_of(ErrorKind::disk, [&] { make_directories(dir / std::string(300, 'x')); }), contains("too long"));
  CHECK(remove_file(dir / "file"));
  CHECK_FALSE(remove_file(dir / "file"));
  CHECK_THAT(error_of(ErrorKind::disk, [&] { remove_file(dir / "a"); }), contains("cannot be removed"));
  CHECK(free_bytes(dir.path()) > 0);
  CHECK_THAT(error_of(ErrorKind::disk, [&] { free_bytes(dir / "none"); }), contains("free space is unknown"));
}
