// From what a user names, a run directory or a checkpoint, to a model that can be asked.
#pragma once
#include <string>

#include "train/checkpoint.h"

namespace qkgpt {

// RUN stands for its best.safetensors, with a notice on stderr for its last.safetensors where there is no best;
// with `newest` for last.safetensors.
std::string checkpoint_path(const std::string& run_or_checkpoint, bool newest);

struct LoadedModel {
  Checkpoint checkpoint;
  Gpt gpt;
  explicit LoadedModel(Checkpoint c);
};

// Together: rank 0 reads the checkpoint. Sets the number of threads and loads the weights. Error(diverged) when they
// are not finite.
std::unique_ptr<LoadedModel> load_model(const std::string& run_or_checkpoint, Index threads);

}  // namespace qkgpt
