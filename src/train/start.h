// From a request to what a run starts with: resolved config, checkpoint, directory.
#pragma once
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

struct Start {
  Config config;
  std::optional<Checkpoint> resumed;        // the state to go on from
  std::optional<Checkpoint> initial;        // the weights to start with (init_from)
  std::unique_ptr<RunDirectory> directory;  // already locked when resuming, else null
  std::vector<std::string> notices;
};

// Reads config and checkpoints and checks that they agree. Writes nothing.
Start prepare(const TrainRequest& request);

// Takes the directory of a fresh run; refuses one that holds a run unless `overwrite`.
std::unique_ptr<RunDirectory> take_directory(const std::string& path, bool overwrite);

}  // namespace qkgpt
