#include "train/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <optional>

#include "base/crc32.h"
#include "base/file.h"
#include "base/signals.h"
#include "base/text.h"
#include "kernels/parallel.h"
#include "model/generate.h"
#include "ranks/ranks.h"
#include "train/evaluate.h"
#include "train/preflight.h"
#include "train/report.h"
#include "train/run_log.h"
#include "train/updates.h"

namespace qkgpt {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point t) {  // above 0, whatever the clock says: rates are divided by it
  return std::max(1e-9, std::chrono::duration<double>(Clock::now() - t).count());
}

std::uint32_t values_crc(const Gpt& gpt, bool shared_only) {
  std::uint32_t crc = 0;
  for (const Param& p : gpt.params().list())
    if (!shared_only || is_shared(p))
      crc = crc32(std::as_bytes(std::span(p.value(), static_cast<std::size_t>(p.size()))), crc);
  return crc;
}

// Runs on every rank alike. What is written, rank 0 writes; the others have no directory and no log.
class Trainer {
 public:
  Trainer(const RunDirectory* directory, Console& console, Gpt& gpt, const Corpus& corpus, Arena& arena,
          const ResumedState* resumed)
      : config_(gpt.config()),
        directory_(directory),
        console_(console),
        gpt_(gpt),
        corpus_(corpus),
        arena_(arena),
        updates_(gpt, corpus.train, arena),
        state_(resumed ? resumed->state : RunState{}),
        saved_step_(resumed ? resumed->state.step : -1) {
    if (resumed) best_to_save_ = resumed->best_to_save, best_to_keep_ = resumed->best_to_keep;
    ranks::at_first([&] {
      log_.emplace(*directory_, console_, resumed ? &state_ : nullptr);
      if (!resumed) log_->start(config_, corpus.sha256, values_crc(gpt, true), windows_crc(config_, corpus));
    });
  }

  int run();  // exit code

 private:
  bool every(Index interval) const { return interval > 0 && state_.step > 0 && state_.step % interval == 0; }
  bool out_of_patience() const { return config_.patience > 0 && state_.evals_since_best >= config_.patience; }
  bool evaluation_due() const;
  void evaluate();
  Evaluation measure();
  void require_equal_weights() const;
  void update();
  void save(bool must, const RunState* before_best = nullptr);
  void save_here(bool must, const RunState* before_best);
  bool save_to(const std::string& path, bool must);
  int stop();
  void farewell();
  void show_progress(const std::string& doing);

  const Config& config_;
  const RunDirectory* directory_;
  Console& console_;
  Gpt& gpt_;
  const Corpus& corpus_;
  Arena& arena_;
  std::optional<RunLog> log_;
  Updates updates_;
  RunState state_;
  Index saved_step_;
  bool best_to_save_ = false;
  double best_to_keep_ = std::numeric_limits<double>::infinity();
  TimeLeft time_left_;
  Index first_unlogged_ = 0;  // updates and seconds since the last train row
  double unlogged_seconds_ = 0.0;
};

int Trainer::run() {
  try {
    if (best_to_save_) {
      const RunState none;
      save(false, &none);
    }
    for (;;) {
      if (evaluation_due())
        evaluate();
      else if (saved_step_ != state_.step &&
               (every(config_.checkpoint_interval.value_or(0)) || every(config_.keep_interval)))
        save(false);
      ranks::stop_if_asked();  // also when all is done: a command behind && must not take it for an undisturbed run
      if (state_.step >= config_.max_iters || out_of_patience()) break;
      if (!console_.is_drawn()) show_progress("training");
      update();
      if (ranks::take_save_request()) save(false);
    }
  } catch (const Interrupted&) {
    return stop();
  }
  farewell();
  return 0;
}

bool Trainer::evaluation_due() const {
  if (state_.last_eval_step == state_.step) return false;
  return state_.step == 0 || state_.step >= config_.max_iters || every(config_.eval_interval);
}

// Measures first, then writes: rows, then checkpoints. Whatever fails, the state of this step is kept.
void Trainer::evaluate() {
  require_equal_weights();
  const auto begin = Clock::now();
  Evaluation e{};
  bool told = false;
  try {
    e = measure();
    ranks::at_first([&] { told = log_->evaluation(state_.step, e, seconds_since(begin)); });
    ranks::share(told);
  } catch (const Interrupted&) {
    throw;
  } catch (...) {
    if (saved_step_ != state_.step && ranks::in_step()) save(false);
    throw;
  }
  const RunState before = state_;
  state_.last_eval_step = state_.step;
  if (e.best) state_.best_step = state_.step, state_.best_val_loss = e.val_loss;
  state_.evals_since_best = e.best ? 0 : state_.evals_since_best + 1;
  time_left_.evaluation_took(seconds_since(begin));
  save(e.last, e.best ? &before : nullptr);
  if (e.last && !std::isfinite(e.has_val ? e.val_loss_full : e.train_loss))
    throw ranks::known_to_all(
        Error(ErrorKind::diverged, cat("step ", state_.step, ": the loss is not finite; a lower learning_rate helps")));
  if (e.last && !told)
    throw ranks::known_to_all(Error(
        ErrorKind::disk, cat(config_.out_dir, "/samples.txt: the last sample could not be written, as warned above; ",
                             config_.out_dir, "/last.safetensors is complete")));
}

Evaluation Trainer::measure() {
  const auto watch = [this](const char* what) {
    return [this, what](double done) {
      ranks::stop_if_asked();
      show_progress(cat("evaluating ", std::string_view(what), " ", fixed(100.0 * done, 0), "%"));
    };
  };
  Evaluation e{};
  e.has_val = corpus_.val.size() > 0;
  e.train_loss = estimate_loss(gpt_, corpus_.train, arena_, watch("train loss"));
  if (e.has_val) e.val_loss = estimate_loss(gpt_, corpus_.val, arena_, watch("val loss"));
  e.best = e.has_val && std::isfinite(e.val_loss) && (state_.best_step < 0 || e.val_loss < state_.best_val_loss);
  e.last = state_.step >= config_.max_iters ||
           (config_.patience > 0 && !e.best && state_.evals_since_best + 1 >= config_.patience);
  ranks::at_first([&] {
    if (config_.attention_stats)
      e.layers = attention_diagnostics(gpt_, e.has_val ? corpus_.val : corpus_.train, arena_);
  });
  if (e.last && e.has_val) e.val_loss_full = full_loss(gpt_, corpus_.val, arena_, watch("the whole validation split"));
  ranks::at_first([&] {
    if (config_.sample_length == 0 || !weights_finite(gpt_)) return;
    const Tokenizer& tokenizer = corpus_.text.tokenizer;
    const std::int32_t newline = tokenizer.id(U'\n'), first = newline >= 0 ? newline : 0;
    std::vector<std::int32_t> ids;
    generate(gpt_, {&first, 1}, config_.sample_length, {}, Stream(config_.seed, "sample", state_.step),
             [&](std::int32_t id) {
               stop_if_asked();
               ids.push_back(id);
               show_progress(cat("sampling ", ids.size(), " of ", config_.sample_length));
               return true;
             });
    e.sample = tokenizer.decode(ids);
  });
  return e;
}

void Trainer::require_equal_weights() const {
  if (ranks::count() == 1) return;
  const std::vector<std::uint32_t> all = ranks::gathered(values_crc(gpt_, false));
  for (std::size_t rank = 1; rank < all.size(); ++rank)
    if (all[rank] != all[0])
      throw ranks::known_to_all(
          Error(ErrorKind::unexpected, cat("step ", state_.step, ": rank ", rank, " has other weights than rank 0; ",
                                           "all machines need the same build of qkgpt and the same kind of CPU")));
}

void Trainer::update() {
  const auto begin = Clock::now();
  const UpdateResult r = updates_.make(state_.step);
  const double seconds = seconds_since(begin);
  const Index tokens = config_.batch_size * config_.gradient_accumulation_steps * config_.block_size;
  if (!r.made) {
    ranks::at_first([&] { log_->update(state_.step + 1, r, tokens, seconds); });
    const std::string last = cat(config_.out_dir, "/last.safetensors");
    std::string kept = cat("; ", last, " is of step ", std::max<Index>(saved_step_, 0));
    if (weights_finite(gpt_)) {
      if (saved_step_ != state_.step) save(true);
      kept = cat("; ", last, " holds the state before it, step ", state_.step);
    }
    throw ranks::known_to_all(Error(ErrorKind::diverged, cat("update ", state_.step + 1, ": ", what_is_not_finite(r),
                                                             kept, "; a lower learning_rate or grad_clip helps")));
  }
  ++state_.step;
  ++first_unlogged_;
  unlogged_seconds_ += seconds;
  time_left_.update_took(seconds);
  if (every(config_.log_interval)) {
    ranks::at_first(
        [&] { log_->update(state_.step, r, tokens, unlogged_seconds_ / static_cast<double>(first_unlogged_)); });
    first_unlogged_ = 0;
    unlogged_seconds_ = 0.0;
  }
  show_progress(cat("loss ", fixed(r.loss, 4), ", ", rate_text(static_cast<double>(tokens) / seconds), " tok/s"));
}

// Rows, so that no checkpoint has a hole in its history; step_*, then best, then last: last speaks of the others, so
// they must be there first. `before_best`: the state before this one became the best, where best is to be saved too.
// Error(disk) when `last` could not be saved and must be.
void Trainer::save(bool must, const RunState* before_best) {
  require_equal_weights();
  ranks::at_first([&] { save_here(must, before_best); });
  ranks::share(state_);
  ranks::share(saved_step_);
}

void Trainer::save_here(bool must, const RunState* before_best) {
  log_->sync();
  if (every(config_.keep_interval)) save_to(directory_->step(state_.step), false);
  const bool keep = best_to_keep_ < state_.best_val_loss;
  if (before_best && !keep && !save_to(directory_->best(), false))  // the record stays with the file that is there
    state_.best_step = before_best->best_step, state_.best_val_loss = before_best->best_val_loss;
  if (!save_to(directory_->last(), must)) return;
  saved_step_ = state_.step;
  console_.line(cat("saving checkpoint to ", directory_->path()));
}

bool Trainer::save_to(const std::string& path, bool must) {
  console_.phase(cat("saving ", path));
  try {
    save_checkpoint(path, gpt_, config_, corpus_.text.tokenizer, corpus_.sha256, state_);
    return true;
  } catch (const Error& e) {
    if (must) throw;
    console_.warning(cat("WARNING: step ", state_.step, ": ", std::string_view(e.what())));
    return false;
  }
}

int Trainer::stop() {
  if (saved_step_ != state_.step) save(true);
  console_.result(cat("stopped by ", std::string_view(stop_signal_name()), " at step ", state_.step, ": saved to ",
                      config_.out_dir, "/last.safetensors; go on with --resume"));
  return 128 + stop_signal();
}

void Trainer::farewell() {
  if (out_of_patience() && state_.step < config_.max_iters)
    console_.result(cat("stopping early: ", state_.evals_since_best, " evaluations in a row without a new best"));
  if (state_.best_step >= 0)
    console_.line(cat("best val loss ", fixed(state_.best_val_loss, 4), " at step ", state_.best_step, ": ",
                      config_.out_dir, "/best.safetensors"));
  if (time_left_.evaluation_share() > 0.5 && time_left_.spent() > 10.0)
    console_.warning(cat("evaluation took ", fixed(100.0 * time_left_.evaluation_share(), 0),
                         "% of the time; a larger eval_interval or smaller eval_iters makes the run shorter"));
}

void Trainer::show_progress(const std::string& doing) {
  if (!console_.shows_progress()) return;
  const Index left = config_.max_iters - state_.step, interval = config_.eval_interval;
  const Index evaluations = left > 0 ? 1 + (interval > 0 ? (left - 1) / interval : 0) : 0;
  const double seconds = time_left_.seconds(left, evaluations);
  const double percent =
      config_.max_iters > 0 ? 100.0 * static_cast<double>(state_.step) / static_cast<double>(config_.max_iters) : 100.0;
  console_.progress(cat(fixed(percent, 1), "%  iter ", state_.step, "/", config_.max_iters, "  ", doing,
                        seconds >= 0.0 ? "  " + duration_text(seconds) + " left" : std::string()));
}

// True when there is nothing left to do, with the reason printed.
bool finished(const Start& start, Console& console) {
  const RunState& s = start.resumed->state;
  if (s.last_eval_step != s.step) return false;
  const Config& c = start.config;
  if (s.step >= c.max_iters) {
    console.result(cat(c.out_dir, ": finished after ", counted(s.step, "update"),
                       s.step > c.max_iters ? cat(" (max_iters ", c.max_iters, ")") : "",
                       "; go on with --resume --max_iters=N, N above ", s.step));
    return true;
  }
  if (c.patience > 0 && s.evals_since_best >= c.patience) {
    console.result(cat(c.out_dir, ": stopped early at step ", s.step, " by patience ", c.patience,
                       "; go on with --resume --patience=0"));
    return true;
  }
  return false;
}

void print_changes(const Start& start, const Corpus& corpus, Console& console) {
  const Config &old = start.resumed->config, &now = start.config;
  for (const std::string& key : changed_keys(old, now))
    for (const Field& f : fields())
      if (f.name == key && key != "out_dir" && key != "threads")
        console.result(cat("changed: ", key, " ", value_text(old, f), " -> ", value_text(now, f)));
  if (lr_decay_iters(old) != lr_decay_iters(now))
    console.result(cat("changed: the learning rate now decays until update ", lr_decay_iters(now), ", before ",
                       lr_decay_iters(old)));
  if (corpus.sha256 != start.resumed->text_sha256)
    throw Error(ErrorKind::usage,
                cat("data: ", corpus.path, " has sha256 ", corpus.sha256, ", the text of ", start.resumed->path,
                    " had ", start.resumed->text_sha256, "; a resumed run needs the same text"));
}

void prepare_model(const Start& start, Gpt& gpt) {
  gpt.allocate(true);
  if (start.resumed) return load_state(*start.resumed, gpt);
  gpt.initialise();
  if (start.initial) load_weights(*start.initial, gpt);
}

// The last look before files of an earlier run are replaced.
void prepare_directory(const Start& start, const Gpt& gpt, const Corpus& corpus) {
  const RunDirectory& directory = *start.directory;
  require_space(directory, gpt, corpus, start.state.state.step);
  stop_if_asked();
  if (!start.resumed) directory.clear();  // only now: whatever was refused above has cost nothing
  const std::string json = to_json(start.config);
  const Bytes pieces[] = {as_bytes(json)};
  write_durably(directory.config(), pieces);
}

int prepare_and_run(const TrainRequest& request, Console& console) {
  if (request.resume) console.phase("reading the checkpoint");
  Start start = prepare(request);
  const Config& config = start.config;
  for (const std::string& notice : start.notices) console.warning(notice);
  if (start.resumed && finished(start, console)) return 0;

  const Checkpoint* source = start.resumed ? &*start.resumed : start.initial ? &*start.initial : nullptr;
  std::optional<Corpus> corpus;
  ranks::together([&] {
    require_shares(config.gradient_accumulation_steps, ranks::count());
    corpus.emplace(config.data, config.val_fraction, source ? &source->tokenizer : nullptr, [&](double done) {
      console.progress(cat("reading ", config.data, " ", fixed(100.0 * done, 0), "%"));
    });
    require_lengths(*corpus, config.block_size);
    if (start.resumed) print_changes(start, *corpus, console);
    require_memory(config, corpus->text.tokenizer.size(), true);
  });
  const Threads threads = choose_threads(config.threads);
  if (!threads.warning.empty()) console.warning(threads.warning);
  set_thread_count(threads.count);

  ranks::at_first([&] {
    if (!start.directory) start.directory = take_directory(config.out_dir, request.overwrite);
    if (!start.directory->locked())
      console.warning(
          cat("WARNING: ", config.out_dir, ": no locks on this file system; let no second process train here"));
  });
  Gpt gpt(config, corpus->text.tokenizer.size());
  console.line(run_report(config, gpt, *corpus, threads));
  ranks::together([&] { prepare_model(start, gpt); });
  if (start.resumed)
    console.line(
        cat("resuming at step ", start.resumed->state.step, " of ", config.max_iters, " from ", start.resumed->path));
  ranks::at_first([&] { prepare_directory(start, gpt, *corpus); });
  const bool resumed = start.resumed.has_value();
  start.resumed.reset();  // its file is in memory
  start.initial.reset();
  Arena arena;
  return Trainer(start.directory.get(), console, gpt, *corpus, arena, resumed ? &start.state : nullptr).run();
}

}  // namespace

int train(const TrainRequest& request) {
  ignore_write_signals();
  catch_signals();
  Console console(request.quiet, request.progress);
  try {
    return prepare_and_run(request, console);
  } catch (const Interrupted&) {  // from Trainer::run none comes out
    console.result(cat("stopped by ", std::string_view(stop_signal_name()), " before the first update"));
    return 128 + stop_signal();
  }
}

}  // namespace qkgpt
