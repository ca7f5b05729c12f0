// Catch2 2.13 (Debian 12) or 3 (Debian 13) behind one name. Use WithinAbs and WithinRel, not Approx.
#pragma once
#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
#else
#include <catch2/catch.hpp>
#endif

namespace qkgpt::test {
#if __has_include(<catch2/catch_all.hpp>)
inline auto contains(const std::string& s) { return Catch::Matchers::ContainsSubstring(s); }
#else
inline auto contains(const std::string& s) { return Catch::Matchers::Contains(s); }
#endif
using Catch::Matchers::WithinAbs;
using Catch::Matchers::WithinRel;
}  // namespace qkgpt::test
