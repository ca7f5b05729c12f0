// From a request to what a run starts with: resolved config, checkpoint, directory.
#pragma once
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "train/checkpoint.h"
#include "train/console.h"
#include "train/run_directory.h"

namespace qkgpt {

struct TrainRequest {
  std::vector<std::string> config_files;
  std::vector<Override> overrides;
  bool resume = false;
  std::string resume_path;  // empty: the newest state in out_dir
  bool overwrite = false, quiet = false;
  ProgressMode progress = ProgressMode::automatic;
};

// The state to go on from, in agreement with the best.safetensors that is there.
struct ResumedState {
  RunState state;
  bool best_to_save = false;  // `state` is the best one and best.safetensors is lost
  // Loss of a best.safetensors from updates that are to be made again: a crash came between its save and that of
  // `last`. It stays until this run has one as good.
  double best_to_keep = std::numeric_limits<double>::infinity();
};

struct Start {
  Config config;
  std::optional<Checkpoint> resumed;        // the checkpoint to go on from
  ResumedState state;                       // and its state
  std::optional<Checkpoint> initial;        // the weights to start with (init_from)
  std::unique_ptr<RunDirectory> directory;  // already locked when resuming, else null
  std::vector<std::string> notices;
};

// Together: rank 0 reads config and checkpoints and checks that they agree; all get them but for the directory. Writes
// nothing.
Start prepare(const TrainRequest& request);

// Together: rank 0's config, everywhere.
void share(Config& config);

// Takes the directory of a fresh run; refuses one that holds a run unless `overwrite`.
std::unique_ptr<RunDirectory> take_directory(const std::string& path, bool overwrite);

}  // namespace qkgpt
