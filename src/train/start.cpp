#include "train/start.h"

#include <algorithm>
#include <filesystem>

#include "base/file.h"
#include "base/text.h"
#include "ranks/ranks.h"

namespace qkgpt {
namespace {

// A resumed run must be the same run: these keys decide what its numbers mean.
const std::vector<std::string> run_keys = {"val_fraction", "seed",       "n_layer",    "n_head",
                                           "n_embd",       "block_size", "bias",       "attention",
                                           "qk_norm_eps",  "softcap",    "batch_size", "gradient_accumulation_steps"};
// A start from another run's weights needs the same model.
const std::vector<std::string> model_keys = {"n_layer", "n_head", "n_embd", "block_size", "bias", "attention"};

const Field& field(const std::string& key) {
  return *std::find_if(fields().begin(), fields().end(), [&](const Field& f) { return f.name == key; });
}

std::string parent_of(const std::string& path) {
  const std::string parent = std::filesystem::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

void require_agreement(const Checkpoint& c, const Config& config, const std::vector<std::string>& keys,
                       const std::string& advice) {
  std::string faults;
  for (const std::string& key : changed_keys(c.config, config))
    if (std::find(keys.begin(), keys.end(), key) != keys.end())
      faults += cat(faults.empty() ? "" : "\n", key, ": ", value_text(c.config, field(key)), " in ", c.path, ", ",
                    value_text(config, field(key)), " asked for; ", advice);
  if (!faults.empty()) throw Error(ErrorKind::usage, faults);
}

// The newest valid checkpoint of a directory; `last` where it is good, however new the others are.
Checkpoint newest(const RunDirectory& directory, std::vector<std::string>& notices) {
  const std::vector<std::string> names = checkpoint_files(directory.path());
  std::optional<Checkpoint> found;
  std::string damage;
  const auto consider = [&](const std::string& name) {
    try {
      Checkpoint c = read_checkpoint(directory.file(name));
      if (!found || c.state.step > found->state.step) found.emplace(std::move(c));
    } catch (const Error& e) {
      damage += cat(damage.empty() ? "" : "\n", std::string_view(e.what()));
    }
  };
  const bool has_last = std::find(names.begin(), names.end(), "last.safetensors") != names.end();
  if (has_last) consider("last.safetensors");
  if (found) return std::move(*found);
  for (const std::string& name : names)
    if (name != "last.safetensors") consider(name);
  if (!found) throw Error(ErrorKind::checkpoint, damage + "\n" + directory.path() + ": no other valid checkpoint");
  notices.push_back(cat("WARNING: ", damage.empty() ? directory.last() + ": missing" : damage,
                        "\nWARNING: going on from ", found->path, " at step ", found->state.step,
                        "; updates made after it are made again"));
  return std::move(*found);
}

// The record of the best belongs to the file that holds it. What a crash or a damaged file can have set apart:
ResumedState agree_on_best(const RunDirectory* directory, const Checkpoint& resumed, bool same_course,
                           std::vector<std::string>& notices) {
  ResumedState r{resumed.state};
  RunState& s = r.state;
  std::string lost = "missing";
  if (directory && exists(directory->best())) {
    try {
      const Checkpoint file = read_checkpoint(directory->best());
      const double loss = file.state.best_val_loss;
      if (file.state.best_step != file.state.step || file.text_sha256 != resumed.text_sha256)
        throw Error(ErrorKind::checkpoint, directory->best() + ": not a best state of this run");
      if (s.best_step >= 0 && loss == s.best_val_loss) return r;
      const bool better = s.best_step < 0 || loss < s.best_val_loss;
      if (better && same_course)
        r.best_to_keep = loss;
      else if (better || s.best_step != s.step)
        s.best_step = file.state.step, s.best_val_loss = loss;
      else
        r.best_to_save = true;
      return r;
    } catch (const Error& e) {
      lost = e.what();
    }
  }
  if (s.best_step < 0) return r;
  r.best_to_save = s.best_step == s.step;
  if (!r.best_to_save) s.best_step = -1, s.best_val_loss = 0.0;
  std::error_code error;
  if (directory && std::filesystem::equivalent(directory->path(), parent_of(resumed.path), error))
    notices.push_back(
        cat("WARNING: best.safetensors: ", lost, "; ",
            r.best_to_save ? "it is written again from the resumed state" : "the next evaluation makes a new one"));
  return r;
}

void prepare_resume(const TrainRequest& request, Start& start) {
  Config given = load_config(request.config_files, request.overrides, Config{}, true);
  const bool names_directory = std::any_of(request.overrides.begin(), request.overrides.end(),
                                           [](const Override& o) { return o.key == "out_dir"; });
  const bool same_directory = request.config_files.empty() && !names_directory;
  std::string path = request.resume_path;
  if (is_directory(path)) {  // of a run, which goes on there as without a path, or elsewhere
    if (same_directory)
      given.out_dir = std::exchange(path, "");
    else
      path = checkpoint_path(path, true);
  }
  const std::string parent = parent_of(path);
  if (!path.empty() && same_directory) given.out_dir = parent;
  if (path.empty() && checkpoint_files(given.out_dir).empty())
    throw Error(ErrorKind::usage, cat(given.out_dir,
                                      "/last.safetensors: no checkpoint to resume; give the out_dir of a "
                                      "run, or --resume=CHECKPOINT"));
  if (!path.empty()) start.resumed = read_checkpoint(path);
  if (path.empty() || is_directory(given.out_dir)) {
    start.directory = std::make_unique<RunDirectory>(given.out_dir);
    std::error_code error;
    const bool elsewhere = !path.empty() && !std::filesystem::equivalent(given.out_dir, parent, error);
    if (elsewhere && !checkpoint_files(given.out_dir).empty())
      throw Error(ErrorKind::usage,
                  cat(given.out_dir, ": holds another run; choose another out_dir to go on from ", path));
  }
  if (path.empty()) start.resumed = newest(*start.directory, start.notices);

  Config base = start.resumed->config;
  base.out_dir = given.out_dir;
  start.config = load_config(request.config_files, request.overrides, base);
  start.config.out_dir = given.out_dir;
  std::vector<std::string> keys = run_keys;
  if (row(base.attention).scale == LogitScale::fixed) keys.push_back("qk_scale_init");
  require_agreement(*start.resumed, start.config, keys, "a resumed run keeps it");
  std::vector<std::string> changed = changed_keys(base, start.config);
  std::erase(changed, "threads");  // which changes no bit
  start.state = agree_on_best(start.directory.get(), *start.resumed, changed.empty(), start.notices);
}

Start prepare_here(const TrainRequest& request) {
  Start start;
  if (request.resume && request.overwrite)
    throw Error(ErrorKind::usage, "--resume: contradicts --overwrite; give one of the two");
  if (request.resume) {
    prepare_resume(request, start);
    return start;
  }
  start.config = load_config(request.config_files, request.overrides);
  if (start.config.init_from) {
    start.initial = read_checkpoint(checkpoint_path(*start.config.init_from, false));
    require_agreement(*start.initial, start.config, model_keys, "init_from needs the same model");
  }
  return start;
}

}  // namespace

void share(Config& config) {
  if (ranks::count() == 1) return;
  std::string json = to_json(config);
  ranks::share(json);
  if (!ranks::first()) config = parse_config(json, "config of rank 0", true);
}

Start prepare(const TrainRequest& request) {
  Start start;
  ranks::at_first([&] { start = prepare_here(request); });
  if (ranks::count() == 1) return start;
  share(start.config);
  ranks::share(start.state);
  share(start.resumed);
  share(start.initial);
  return start;
}

std::unique_ptr<RunDirectory> take_directory(const std::string& path, bool overwrite) {
  const auto refuse = [&] {
    throw Error(ErrorKind::usage, cat(path, ": holds a run; --resume goes on with it, --overwrite starts afresh"));
  };
  if (!overwrite && !checkpoint_files(path).empty()) {
    RunDirectory held(path);  // somebody at work there is the better reason to refuse
    refuse();
  }
  auto directory = std::make_unique<RunDirectory>(path);
  if (!overwrite && !checkpoint_files(path).empty()) refuse();
  return directory;
}

}  // namespace qkgpt
