// What a run tells: rows to metrics.jsonl, lines in nanoGPT's shape to the console, samples to samples.txt.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "train/console.h"
#include "train/metrics.h"
#include "train/run_directory.h"
#include "train/updates.h"

namespace qkgpt {

struct Evaluation {
  double train_loss;
  double val_loss;       // if there is validation
  double val_loss_full;  // if this is the last evaluation
  bool has_val, best, last;
  std::vector<AttentionStats> layers;  // empty with attention_stats off
  std::string sample;                  // empty with sample_length 0
};

class RunLog {
 public:
  // For a resumed run, what is later than its state is cut off.
  RunLog(const RunDirectory& directory, Console& console, const RunState* resumed);

  void start(const Config& config, const std::string& text_sha256, std::uint32_t init_crc, std::uint32_t windows_crc);
  void update(Index step, const UpdateResult& result, Index tokens_per_update, double seconds);
  // False when the sample could not be written to samples.txt, after a warning.
  bool evaluation(Index step, const Evaluation& e, double seconds);

  void sync();  // what was told so far is on the disk

 private:
  bool write_sample(Index step, const std::string& text);
  void warn_once();

  Console& console_;
  Metrics metrics_;
  std::string samples_path_;
  std::optional<AppendFile> samples_;
  bool warned_ = false;
};

}  // namespace qkgpt
