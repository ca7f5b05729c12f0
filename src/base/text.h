// Small text tools, independent of the locale.
#pragma once
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/check.h"

namespace qkgpt {

// Shortest decimal text that reads back as the same double ("0.001", "1e-08", "nan").
inline std::string shortest(double x) {
  char buffer[32];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, x).ptr;
  return std::string(buffer, end);
}

// Fixed notation with `digits` decimals ("2.4293").
inline std::string fixed(double x, int digits) {
  char buffer[400];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, x, std::chars_format::fixed, digits).ptr;
  return std::string(buffer, end);
}

namespace detail {
inline void append(std::string& out, std::string_view s) { out += s; }
inline void append(std::string& out, char c) { out += c; }
inline void append(std::string& out, double x) { out += shortest(x); }
template <class T>
requires std::is_integral_v<T> &&(!std::is_same_v<T, char>)void append(std::string& out, T x) {
  out += std::to_string(x);
}
}  // namespace detail

// cat("a", 1, "b", 0.5) == "a1b0.5"
template <class... Parts>
std::string cat(const Parts&... parts) {
  std::string out;
  (detail::append(out, parts), ...);
  return out;
}

// Lines longer than a terminal is wide, broken at blanks; what is left of one stands under its last column, that is
// behind the last two blanks in a row.
inline std::string folded(const std::string& text, std::size_t width = 79) {
  std::string out;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size()),
                      gap = text.substr(begin, end - begin).rfind("  ");
    std::string line = text.substr(begin, end - begin);
    const std::string indent(gap == std::string::npos ? 0 : gap + 2, ' ');
    for (std::size_t cut; line.size() > width; line = indent + line.substr(cut + 1)) {
      cut = line.rfind(' ', width);
      if (cut == std::string::npos || cut <= indent.size()) break;
      out += line.substr(0, cut) + "\n";
    }
    out += line;
    if (end < text.size()) out += '\n';
    begin = end + 1;
  }
  return out;
}

// 1234567 -> "1,234,567"
inline std::string grouped(Index n) {
  std::string s = std::to_string(n);
  for (Index i = static_cast<Index>(s.size()) - 3; i > (n < 0 ? 1 : 0); i -= 3)
    s.insert(static_cast<std::size_t>(i), 1, ',');
  return s;
}

// 1 -> "1 update", 2000 -> "2,000 updates"
inline std::string counted(Index n, const std::string& thing) { return grouped(n) + " " + thing + (n == 1 ? "" : "s"); }

// 1536 -> "1.5 kB": powers of 1000, as disks and `ls --si` count.
inline std::string bytes_text(double bytes) {
  const char* units[] = {"B", "kB", "MB", "GB", "TB", "PB"};
  int u = 0;
  while (bytes >= 1000 && u < 5) bytes /= 1000, ++u;
  return fixed(bytes, u == 0 ? 0 : bytes < 10 ? 2 : 1) + " " + units[u];
}

// The candidate with the smallest edit distance to `word`, or "" when none is near: a letter or a swap in a
// short word, more in a longer one.
inline std::string nearest(std::string_view word, const std::vector<std::string>& candidates) {
  std::string best;
  std::size_t best_distance = word.size() < 4 ? 2 : word.size() / 3 + 2;
  for (const std::string& candidate : candidates) {
    if (word.size() >= candidate.size() + best_distance) continue;  // so many letters would have to go
    std::vector<std::size_t> row(candidate.size() + 1);
    for (std::size_t j = 0; j < row.size(); ++j) row[j] = j;
    for (std::size_t i = 1; i <= word.size(); ++i) {
      std::size_t diagonal = row[0];
      row[0] = i;
      for (std::size_t j = 1; j < row.size(); ++j) {
        const std::size_t substitute = diagonal + (word[i - 1] != candidate[j - 1]);
        diagonal = row[j];
        row[j] = std::min({row[j] + 1, row[j - 1] + 1, substitute});
      }
    }
    if (row.back() < best_distance) best_distance = row.back(), best = candidate;
  }
  return best;
}

}  // namespace qkgpt
