// metrics.jsonl: one JSON object a line, written whole. A row that cannot be written waits and comes with the next.
#pragma once
#include <string>
#include <vector>

#include "base/append_file.h"
#include "config/config.h"
#include "ops/ops.h"
#include "train/checkpoint.h"

namespace qkgpt {

class Metrics {
 public:
  // Opens the file for appending. For a resumed run, rows later than the state are cut off, and an unfinished
  // last line. Error(disk) when it cannot be opened or cut.
  Metrics(const std::string& path, const RunState* resumed_from);

  void start(const Config& config, const std::string& text_sha256, std::uint32_t init_crc, std::uint32_t windows_crc);
  void train(Index step, double loss, double lr, double grad_norm, Index tokens, double ms, double tok_per_s);
  void eval(Index step, double train_loss, const double* val_loss, bool best, double ms);  // val_loss may be null
  void attention(Index step, Index layer, const AttentionStats& stats);
  void final(Index step, double val_loss, double val_loss_full);

  void sync();  // rows so far are on the disk, those that wait included if they now can be written

  bool failed() const { return failed_; }  // a row could not be written at once, or not durably

 private:
  void write(const std::string& line);

  AppendFile file_;
  std::string waiting_;
  bool failed_ = false;
};

}  // namespace qkgpt
