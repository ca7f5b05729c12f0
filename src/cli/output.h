// Results on stdout.
#pragma once
#include <cerrno>
#include <cstdio>
#include <string>

#include "base/check.h"

namespace qkgpt {

// Writes and flushes, so that text is seen while it comes. False when the reader has closed the pipe: nobody
// wants more. Error when the text cannot be written for another reason.
inline bool write_out(const std::string& text) {
  errno = 0;
  if (std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0) return true;
  if (errno == EPIPE) return false;
  throw Error(ErrorKind::unexpected, "stdout: the result could not be written; is the disk full?");
}

}  // namespace qkgpt
