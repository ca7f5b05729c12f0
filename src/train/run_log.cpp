#include "train/run_log.h"

#include <cmath>
#include <cstdio>
#include <numbers>

#include "base/file.h"
#include "base/text.h"

namespace qkgpt {
namespace {

// Each sample follows a line that says how long it is, so that a torn one is known whatever characters it has.
std::string sample_record(Index step, const std::string& text) {
  return cat("=== step ", step, ": ", static_cast<Index>(text.size()), " bytes ===\n", text, "\n");
}

// Length of the leading part of samples.txt that belongs to the state, in whole samples.
std::size_t kept_length(const std::string& content, const RunState& state) {
  for (std::size_t at = 0;;) {
    long long step = 0, bytes = 0;
    if (std::sscanf(content.c_str() + at, "=== step %18lld: %18lld bytes ===\n", &step, &bytes) != 2) return at;
    const std::size_t line_end = content.find('\n', at);
    if (line_end == std::string::npos || bytes < 0 || static_cast<std::size_t>(bytes) >= content.size() - line_end - 1)
      return at;
    const std::string text = content.substr(line_end + 1, static_cast<std::size_t>(bytes)),
                      record = sample_record(step, text);
    const bool later = step > state.step || (step == state.step && state.last_eval_step != step);
    if (later || content.compare(at, record.size(), record) != 0) return at;
    at += record.size();
  }
}

// Cuts samples.txt behind the last sample that belongs to the state.
void cut_samples(const std::string& path, const RunState& state) {
  if (!exists(path)) return;
  const std::string content = read_file(path);
  const std::size_t length = kept_length(content, state);
  if (length < content.size()) AppendFile(path).cut(static_cast<Index>(length));
}

}  // namespace

RunLog::RunLog(const RunDirectory& directory, Console& console, const RunState* resumed)
    : console_(console), metrics_(directory.metrics(), resumed), samples_path_(directory.samples()) {
  if (resumed) cut_samples(samples_path_, *resumed);
}

void RunLog::warn_once() {
  if (!metrics_.failed() || warned_) return;
  warned_ = true;
  console_.warning(
      "WARNING: metrics.jsonl: a row could not be written and waits for the next; checkpoints are not affected");
}

void RunLog::start(const Config& config, const std::string& sha, std::uint32_t init_crc, std::uint32_t windows_crc) {
  metrics_.start(config, sha, init_crc, windows_crc);
  warn_once();
}

void RunLog::update(Index step, const UpdateResult& r, Index tokens_per_update, double seconds) {
  const double rate = static_cast<double>(tokens_per_update) / seconds;
  metrics_.train(step, r.loss, r.lr, r.grad_norm, step * tokens_per_update, 1000.0 * seconds, rate);
  console_.line(cat("iter ", step, ": loss ", fixed(r.loss, 4), ", time ", fixed(1000.0 * seconds, 2), "ms, ",
                    rate_text(rate), " tok/s"));
  warn_once();
}

bool RunLog::evaluation(Index step, const Evaluation& e, double seconds) {
  metrics_.eval(step, e.train_loss, e.has_val ? &e.val_loss : nullptr, e.best, 1000.0 * seconds);
  for (std::size_t layer = 0; layer < e.layers.size(); ++layer)
    metrics_.attention(step, static_cast<Index>(layer), e.layers[layer]);
  console_.result(cat("step ", step, ": train loss ", fixed(e.train_loss, 4),
                      e.has_val ? ", val loss " + fixed(e.val_loss, 4) : std::string()));
  const bool sample_kept = e.sample.empty() || write_sample(step, e.sample);
  if (e.last && e.has_val) {
    metrics_.final(step, e.val_loss, e.val_loss_full);
    console_.result(cat("final: val loss ", fixed(e.val_loss_full, 4), " over the whole val split, ",
                        fixed(e.val_loss_full / std::numbers::ln2, 4), " bits per character"));
  }
  warn_once();
  return sample_kept;
}

void RunLog::sync() {
  metrics_.sync();
  warn_once();
  if (samples_ && !samples_->sync()) console_.warning("WARNING: samples.txt: could not be synced");
}

bool RunLog::write_sample(Index step, const std::string& text) {
  console_.line(cat("sample at step ", step, ":\n", text));
  std::string reason = "is the disk full?";
  try {
    if (!samples_) samples_.emplace(samples_path_);
    if (samples_->append(sample_record(step, text))) return true;
  } catch (const Error& e) {
    reason = e.what();
  }
  console_.warning(cat("WARNING: step ", step, ": the sample could not be added to samples.txt: ", reason));
  return false;
}

}  // namespace qkgpt
