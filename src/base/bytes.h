// A view of raw bytes that somebody else owns.
#pragma once
#include <cstddef>
#include <span>
#include <string_view>

namespace qkgpt {

using Bytes = std::span<const std::byte>;

inline Bytes as_bytes(std::string_view s) { return {reinterpret_cast<const std::byte*>(s.data()), s.size()}; }
inline std::string_view as_text(Bytes b) { return {reinterpret_cast<const char*>(b.data()), b.size()}; }

}  // namespace qkgpt
