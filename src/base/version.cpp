#include "base/version.h"

namespace qkgpt {

const char* version() { return QKGPT_VERSION; }
const char* build_arch() { return QKGPT_ARCH; }

}  // namespace qkgpt
