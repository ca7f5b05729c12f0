// From what a user names, a run directory or a checkpoint, to a model that can be asked.
#pragma once
#include <string>

#include "train/checkpoint.h"

namespace qkgpt {

struct LoadedModel {
  Checkpoint checkpoint;
  Gpt gpt;
  explicit LoadedModel(Checkpoint c);
};

// Together: rank 0 reads the checkpoint. Sets the number of threads and loads the weights. Error(diverged) when they
// are not finite.
std::unique_ptr<LoadedModel> load_model(const std::string& run_or_checkpoint, Index threads);

}  // namespace qkgpt
