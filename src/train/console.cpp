#include "train/console.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/text.h"
#include "ranks/ranks.h"

namespace qkgpt {
namespace {

bool is_terminal() {
  const char* term = std::getenv("TERM");
  return isatty(STDERR_FILENO) && !(term && std::strcmp(term, "dumb") == 0);
}

std::size_t terminal_width() {
  winsize size{};
  if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
  return size.ws_col;
}

}  // namespace

Console::Console(bool quiet, ProgressMode mode)
    : mute_(!ranks::first()),
      quiet_(quiet),
      progress_(!mute_ && !quiet &&
                (mode == ProgressMode::always || (mode == ProgressMode::automatic && is_terminal()))) {}

void Console::line(const std::string& text) {
  if (!quiet_) result(text);
}

void Console::result(const std::string& text) {
  clear();
  if (broken_ || mute_) return;
  const std::string whole = text + "\n";
  if (std::fwrite(whole.data(), 1, whole.size(), stdout) == whole.size() && std::fflush(stdout) == 0) return;
  broken_ = true;  // the run's value is in its files
  warning("stdout: cannot be written; the run goes on, its results are in the run directory");
}

void Console::warning(const std::string& text) {
  clear();
  if (!mute_) std::fputs((text + "\n").c_str(), stderr);
}

void Console::progress(const std::string& text) {
  if (!progress_) return;
  if (drawn_ && std::chrono::steady_clock::now() - last_ < std::chrono::milliseconds(100)) return;
  phase(text);
}

void Console::phase(const std::string& text) {
  if (!progress_) return;
  last_ = std::chrono::steady_clock::now();
  drawn_ = true;
  std::fputs(("\r\033[K" + text.substr(0, terminal_width() - 1)).c_str(), stderr);
  std::fflush(stderr);
}

void Console::clear() {
  if (!drawn_) return;
  std::fputs("\r\033[K", stderr);
  std::fflush(stderr);
  drawn_ = false;
}

std::string duration_text(double seconds) {
  const auto s = static_cast<Index>(std::clamp(seconds, 0.0, 1e15) + 0.5);
  const auto two = [](Index n) { return cat(n < 10 ? "0" : "", n); };
  return s >= 3600 ? cat(s / 3600, ":", two(s / 60 % 60), ":", two(s % 60)) : cat(s / 60, ":", two(s % 60));
}

std::string rate_text(double r) {
  if (r >= 1e6) return fixed(r / 1e6, 2) + "M";
  return r >= 1000.0 ? fixed(r / 1000.0, 1) + "k" : fixed(r, 0);
}

void TimeLeft::update_took(double seconds) {
  constexpr Index warm_up = 3;
  all_update_seconds_ += seconds;
  if (seen_++ < warm_up) return;
  ++updates_;
  update_seconds_ += seconds;
}

void TimeLeft::evaluation_took(double seconds) {
  ++evaluations_;
  evaluation_seconds_ += seconds;
}

double TimeLeft::seconds(Index updates_left, Index evaluations_left) const {
  if (updates_ == 0) return -1.0;
  const double evaluation = evaluations_ > 0 ? evaluation_seconds_ / static_cast<double>(evaluations_) : 0.0;
  return seconds_per_update() * static_cast<double>(updates_left) + evaluation * static_cast<double>(evaluations_left);
}

}  // namespace qkgpt
