/* A library to preload: lets the n-th call on a file below QKGPT_FAULT_DIR fail, kill or disturb the program, and
 * writes down what the calls did. See faults.py, which builds and steers it.
 *   QKGPT_FAULT="CALL FIRST LAST ACTION"  CALL: any, a name below, or NAME@FILE; ACTION: an errno number, or
 *       kill (before the call), INT, TERM, HUP, USR1 (sent before the call), delay (half a second), short (writes),
 *       flip (the first bit of what is read)
 *   QKGPT_TRACE=FILE      "> CALL NAME" for each call, then a line for what it changed
 *   QKGPT_CLOCK=jump|stop time that leaps a day to and fro at every look, or stands still */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { most_files = 1024 };
static char names[most_files][512]; /* of open files, relative to the directory; "" for others */
static const char *directory, *clock_mode;
static char fault_call[600], fault_action[32];
static long first, last, seen;
static FILE *trace;
enum { go_on = 0, make_short = -1, flip = -2 };

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

__attribute__((constructor)) static void begin(void) {
  directory = getenv("QKGPT_FAULT_DIR");
  clock_mode = getenv("QKGPT_CLOCK");
  const char *fault = getenv("QKGPT_FAULT"), *file = getenv("QKGPT_TRACE");
  if (fault && sscanf(fault, "%599s %ld %ld %31s", fault_call, &first, &last, fault_action) != 4) abort();
  if (file && !(trace = fopen(file, "we"))) abort();
}

static const char *below(const char *path) {
  size_t n;
  if (!directory || !path) return NULL;
  n = strlen(directory);
  if (strncmp(path, directory, n) != 0 || (path[n] != '/' && path[n] != 0)) return NULL;
  path += n;
  while (*path == '/') ++path;
  return *path ? path : ".";
}
static const char *name_of(int fd) { return fd >= 0 && fd < most_files && names[fd][0] ? names[fd] : NULL; }

static void note(const char *format, ...) {
  va_list arguments;
  if (!trace) return;
  va_start(arguments, format);
  vfprintf(trace, format, arguments);
  va_end(arguments);
  fflush(trace);
}
static void note_data(const char *call, const char *name, long offset, const unsigned char *data, size_t size) {
  if (!trace) return;
  fprintf(trace, "%s %s %ld ", call, name, offset);
  for (size_t i = 0; i < size; ++i) fprintf(trace, "%02x", data[i]);
  fputc('\n', trace);
  fflush(trace);
}

/* An errno, go_on, make_short or flip. */
static int fault(const char *call, const char *name) {
  char both[600];
  note("> %s %s\n", call, name);
  snprintf(both, sizeof both, "%s@%s", call, name);
  if (strcmp(fault_call, "any") != 0 && strcmp(fault_call, call) != 0 && strcmp(fault_call, both) != 0) return go_on;
  ++seen;
  if (seen < first || seen > last) return go_on;
  note("fault %s\n", call);
  if (strcmp(fault_action, "kill") == 0) kill(getpid(), SIGKILL);
  if (strcmp(fault_action, "INT") == 0) kill(getpid(), SIGINT);
  if (strcmp(fault_action, "TERM") == 0) kill(getpid(), SIGTERM);
  if (strcmp(fault_action, "HUP") == 0) kill(getpid(), SIGHUP);
  if (strcmp(fault_action, "USR1") == 0) kill(getpid(), SIGUSR1);
  if (strcmp(fault_action, "delay") == 0) {
    const struct timespec half = {0, 500000000};
    nanosleep(&half, NULL);
  }
  if (strcmp(fault_action, "short") == 0) return make_short;
  if (strcmp(fault_action, "flip") == 0) return flip;
  return atoi(fault_action);
}
#define FAIL_IF_TOLD(call, name)       \
  do {                                 \
    const int e = fault(call, name);   \
    if (e > 0) return errno = e, -1;   \
  } while (0)

int open(const char *path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const int mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(arguments, int) : 0;
  va_end(arguments);
  const char *name = below(path);
  struct stat status;
  const int is_new = name && flags & O_CREAT && stat(path, &status) != 0;
  if (name) FAIL_IF_TOLD("open", name);
  const int fd = REAL(open)(path, flags, mode);
  if (fd >= 0 && fd < most_files) snprintf(names[fd], sizeof names[fd], "%s", name ? name : "");
  if (name && fd >= 0) note("%s %s\n", is_new ? "create" : "open", name);
  return fd;
}

ssize_t write(int fd, const void *from, size_t size) {
  const char *name = name_of(fd);
  if (!name) return REAL(write)(fd, from, size);
  const int told = fault("write", name);
  if (told > 0) return errno = told, -1;
  if (told == make_short) size = size / 2;
  const long at = lseek(fd, 0, fcntl(fd, F_GETFL) & O_APPEND ? SEEK_END : SEEK_CUR);
  const ssize_t n = REAL(write)(fd, from, size);
  if (n > 0) note_data("write", name, at, from, (size_t)n);
  return n;
}

ssize_t pread(int fd, void *to, size_t size, off_t offset) {
  const char *name = name_of(fd);
  const int told = name ? fault("pread", name) : go_on;
  if (told > 0) return errno = told, -1;
  const ssize_t n = REAL(pread)(fd, to, size, offset);
  if (told == flip && n > 0) *(char *)to ^= 1;
  return n;
}

int posix_fallocate(int fd, off_t offset, off_t size) {
  const char *name = name_of(fd);
  const int told = name ? fault("allocate", name) : go_on;
  if (told > 0) return told;
  const int result = REAL(posix_fallocate)(fd, offset, size);
  if (name && result == 0) note("allocate %s %ld\n", name, (long)(offset + size));
  return result;
}

int ftruncate(int fd, off_t size) {
  const char *name = name_of(fd);
  if (name) FAIL_IF_TOLD("truncate", name);
  const int result = REAL(ftruncate)(fd, size);
  if (name && result == 0) note("truncate %s %ld\n", name, (long)size);
  return result;
}

int fsync(int fd) {
  const char *name = name_of(fd);
  const int told = name ? fault("fsync", name) : go_on;
  if (told > 0) return note("unsynced %s\n", name), errno = told, -1;
  const int result = REAL(fsync)(fd);
  if (name && result == 0) note("sync %s\n", name);
  return result;
}

int close(int fd) {
  char name[512] = "";
  if (name_of(fd)) strcpy(name, names[fd]), names[fd][0] = 0;
  const int told = *name ? fault("close", name) : go_on;
  const int result = REAL(close)(fd); /* a failing close gives the number back all the same */
  if (*name) note("close %s\n", name);
  return told > 0 ? (errno = told, -1) : result;
}

int rename(const char *from, const char *to) {
  if (below(to)) FAIL_IF_TOLD("rename", below(to));
  const int result = REAL(rename)(from, to);
  if (below(to) && result == 0) note("rename %s %s\n", below(from), below(to));
  return result;
}

int unlink(const char *path) {
  if (below(path)) FAIL_IF_TOLD("unlink", below(path));
  const int result = REAL(unlink)(path);
  if (below(path) && result == 0) note("unlink %s\n", below(path));
  return result;
}

int flock(int fd, int operation) {
  if (name_of(fd)) FAIL_IF_TOLD("flock", name_of(fd));
  return REAL(flock)(fd, operation);
}

int clock_gettime(clockid_t id, struct timespec *time) {
  static int looks;
  const int result = REAL(clock_gettime)(id, time);
  if (clock_mode && strcmp(clock_mode, "jump") == 0) time->tv_sec += ++looks % 2 ? 86400 : -3600;
  if (clock_mode && strcmp(clock_mode, "stop") == 0) time->tv_sec = 2208988800, time->tv_nsec = 0; /* in 2040 */
  return result;
}
