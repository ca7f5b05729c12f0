#include <cstdio>

#include "cli/commands.h"
#include "cli/options.h"
#include "cli/output.h"
#include "ranks/ranks.h"
#include "train/trainer.h"

namespace qkgpt {
namespace {
int run(const Arguments& a);
}

const Command& train_command() {
  static const Command c = {
      .name = "train",
      .brief = "train a model, or go on with --resume",
      .synopsis = "[CONFIG.json ...] [--KEY=VALUE ...]",
      .summary = "Trains a model. Later config files override earlier ones, --KEY=VALUE overrides all files.",
      .most_positionals = any_number,
      .options = {{"resume", "CHECKPOINT", "", "go on with the run in out_dir, or with this run or checkpoint", true},
                  {"overwrite", "", "", "start afresh in a directory that holds a run"},
                  {"print-config", "", "", "print the resolved config and stop"},
                  {"dry-run", "", "", "print parameters, memory and an estimate of the time, and stop"},
                  {"progress", "auto|always|never", "auto", "the redrawn progress line on stderr"},
                  {"quiet", "", "", "only evaluations, warnings and errors"}},
      .config_keys = true,
      .many_ranks = true,
      .run = run,
  };
  return c;
}

namespace {

ProgressMode progress_mode(const std::string& text) {
  if (text == "auto") return ProgressMode::automatic;
  if (text == "always") return ProgressMode::always;
  if (text == "never") return ProgressMode::never;
  throw Error(ErrorKind::usage, "--progress: '" + text + "' is unknown; expected auto, always or never");
}

int run(const Arguments& a) {
  const TrainRequest request = {.config_files = a.positionals,
                                .overrides = a.overrides,
                                .resume = a.has("resume"),
                                .resume_path = a.get("resume", ""),
                                .overwrite = a.has("overwrite"),
                                .quiet = a.has("quiet"),
                                .progress = progress_mode(a.get("progress", "auto"))};
  if (a.has("print-config")) {
    ranks::at_first([&] { write_out(to_json(load_config(request.config_files, request.overrides))); });
    return 0;
  }
  if (a.has("dry-run")) return dry_run(request), 0;
  return train(request);
}

}  // namespace
}  // namespace qkgpt
