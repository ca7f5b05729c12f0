// What the user sees: whole lines on stdout, warnings and one redrawn progress line on stderr.
#pragma once
#include <chrono>
#include <string>

#include "base/check.h"

namespace qkgpt {

enum class ProgressMode { automatic, always, never };  // automatic: where stderr is a terminal

class Console {
 public:
  Console(bool quiet, ProgressMode mode);
  ~Console() { clear(); }
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  void line(const std::string& text);      // a result or log line, flushed; nothing when quiet
  void result(const std::string& text);    // the same, also when quiet
  void warning(const std::string& text);   // to stderr, also when quiet
  void progress(const std::string& text);  // at most ten times a second, cut to the terminal's width
  void phase(const std::string& text);     // the same, at once: something that may take long begins
  void clear();                            // takes the progress line away

  bool shows_progress() const { return progress_; }
  bool is_drawn() const { return drawn_; }

 private:
  bool mute_;  // on every rank but the first
  bool quiet_, progress_, drawn_ = false, broken_ = false;
  std::chrono::steady_clock::time_point last_{};
};

// 83 -> "1:23", 4000 -> "1:06:40"
std::string duration_text(double seconds);

// 64437 -> "64.4k", 950 -> "950"
std::string rate_text(double per_second);

// Time left, from the durations of what was done in this process: updates (the first few left out) and
// evaluations apart.
class TimeLeft {
 public:
  void update_took(double seconds);
  void evaluation_took(double seconds);
  double seconds_per_update() const { return updates_ > 0 ? update_seconds_ / static_cast<double>(updates_) : 0.0; }
  // -1 while unknown
  double seconds(Index updates_left, Index evaluations_left) const;
  double spent() const { return evaluation_seconds_ + all_update_seconds_; }
  double evaluation_share() const { return spent() > 0.0 ? evaluation_seconds_ / spent() : 0.0; }

 private:
  Index seen_ = 0, updates_ = 0, evaluations_ = 0;
  double update_seconds_ = 0.0, evaluation_seconds_ = 0.0, all_update_seconds_ = 0.0;
};

}  // namespace qkgpt
