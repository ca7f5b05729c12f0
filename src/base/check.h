// Errors a user can mend (Error) and faults only we can mend (check).
#pragma once
#include <cstdint>
#include <stdexcept>
#include <string>

namespace qkgpt {

using Index = std::int64_t;  // sizes, counts and offsets: signed, 64 bits

// The value is the program's exit code.
enum class ErrorKind : int {
  unexpected = 1,
  usage = 2,       // usage, config or input
  diverged = 3,    // a loss, gradient, weight or logit is not finite
  checkpoint = 4,  // damaged or foreign checkpoint
  disk = 5,        // could not save
  busy = 6,        // run directory in use
};

// Message: "subject: what is wrong; what would be right", one line, no full stop.
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  ErrorKind kind() const { return kind_; }

 private:
  ErrorKind kind_;
};

// For what only a change of this program can mend; never called in inner loops.
inline void check(bool ok, const char* what, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  if (!ok) throw std::logic_error(std::string(file) + ":" + std::to_string(line) + ": " + what);
}

}  // namespace qkgpt
