#pragma once

namespace qkgpt {

const char* version();     // "0.1.0", from project(VERSION) in CMakeLists.txt
const char* build_arch();  // what -march got: "native", "x86-64-v3", ...

}  // namespace qkgpt
