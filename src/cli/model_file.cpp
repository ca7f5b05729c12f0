#include "cli/model_file.h"

#include <cstdio>

#include "base/file.h"
#include "base/text.h"
#include "kernels/parallel.h"
#include "ranks/ranks.h"
#include "train/report.h"
#include "train/threads.h"

namespace qkgpt {

std::string checkpoint_path(const std::string& name, bool newest) {
  if (!is_directory(name)) return name;
  const std::string best = name + "/best.safetensors", last = name + "/last.safetensors";
  if (!newest && exists(best)) return best;
  if (exists(last)) {
    if (!newest)
      std::fputs(cat("qkgpt: ", name, " has no best.safetensors; taking last.safetensors\n").c_str(), stderr);
    return last;
  }
  throw Error(ErrorKind::usage, cat(last, ": not found; give a run directory or a checkpoint file"));
}

LoadedModel::LoadedModel(Checkpoint c)
    : checkpoint(std::move(c)), gpt(checkpoint.config, checkpoint.tokenizer.size()) {}

std::unique_ptr<LoadedModel> load_model(const std::string& name, Index wanted_threads) {
  std::optional<Checkpoint> checkpoint;
  ranks::at_first([&] { checkpoint = read_checkpoint(checkpoint_path(name, false)); });
  share(checkpoint);
  auto model = std::make_unique<LoadedModel>(std::move(*checkpoint));
  ranks::together([&] { require_memory(model->checkpoint.config, model->checkpoint.tokenizer.size(), false); });
  const Threads threads = choose_threads(wanted_threads);
  set_thread_count(threads.count);
  model->gpt.allocate(false);
  load_weights(model->checkpoint, model->gpt);
  ranks::together([&] {
    if (!weights_finite(model->gpt))
      throw Error(ErrorKind::diverged,
                  cat(model->checkpoint.path, ": weights are not finite; take an earlier checkpoint"));
  });
  return model;
}

}  // namespace qkgpt
