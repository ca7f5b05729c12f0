// The message of the Error that `f` throws, which must be of the given kind.
#pragma once
#include <string>

#include "base/check.h"
#include "catch.h"

namespace qkgpt::test {

template <class F>
std::string error_of(ErrorKind kind, F f) {
  try {
    f();
  } catch (const Error& e) {
    CHECK(static_cast<int>(e.kind()) == static_cast<int>(kind));
    return e.what();
  }
  return "(no error)";
}

}  // namespace qkgpt::test
