#include "train/run_log.h"

#include <cmath>
#include <cstdlib>
#include <numbers>

#include "base/file.h"
#include "base/text.h"

namespace qkgpt {
namespace {

constexpr std::string_view sample_head = "=== step ";

// Cuts samples.txt before the first sample of a later step.
void cut_samples(const std::string& path, const RunState& state) {
  if (!exists(path)) return;
  const std::string content = read_file(path);
  for (std::size_t at = 0; (at = content.find(sample_head, at)) != std::string::npos; at += sample_head.size()) {
    if (at > 0 && content[at - 1] != '\n') continue;
    const Index step = std::atoll(content.c_str() + at + sample_head.size());
    if (step < state.step || (step == state.step && state.last_eval_step == step)) continue;
    AppendFile(path).cut(static_cast<Index>(at));
    return;
  }
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
      "WARNING: metrics.jsonl: a row could not be written; the run goes on, its checkpoints are not affected");
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
    console_.result(cat("final: val loss ", fixed(e.val_loss_full, 4), " over the whole validation split, ",
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
    if (samples_->append(cat(sample_head, step, " ===\n", text, "\n"))) return true;
  } catch (const Error& e) {
    reason = e.what();
  }
  console_.warning(cat("WARNING: step ", step, ": the sample could not be added to samples.txt: ", reason));
  return false;
}

}  // namespace qkgpt
