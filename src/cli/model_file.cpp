#include "cli/model_file.h"

#include "base/text.h"
#include "kernels/parallel.h"
#include "ranks/ranks.h"
#include "train/report.h"
#include "train/threads.h"

namespace qkgpt {

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
