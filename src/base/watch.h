// How long work lets others look on.
#pragma once
#include <functional>

namespace qkgpt {

// Called now and then with the fraction that is done; may throw to end the work.
using Watch = std::function<void(double done)>;

}  // namespace qkgpt
