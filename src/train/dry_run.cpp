#include <chrono>

#include "base/text.h"
#include "kernels/parallel.h"
#include "ranks/ranks.h"
#include "train/report.h"
#include "train/trainer.h"
#include "train/updates.h"

namespace qkgpt {
namespace {

// Seconds of an update, from some of them; rank 0's clock says how many.
double measured(Updates& updates) {
  using Clock = std::chrono::steady_clock;
  updates.make(0);  // the first one takes the memory
  const auto begin = Clock::now();
  double seconds = 0.0;
  Index made = 0;
  while (made < 3 || (made < 50 && seconds < 1.0)) {
    updates.make(++made);
    seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    ranks::share(seconds);
  }
  return seconds / static_cast<double>(made);
}

}  // namespace

void dry_run(const TrainRequest& request) {
  Config config;
  ranks::at_first([&] { config = load_config(request.config_files, request.overrides); });
  share(config);
  std::optional<Corpus> corpus;
  ranks::together([&] {
    require_shares(config.gradient_accumulation_steps, ranks::count());
    corpus.emplace(config.data, config.val_fraction);
    require_lengths(*corpus, config.block_size);
  });
  const Threads threads = choose_threads(config.threads);
  set_thread_count(threads.count);
  Gpt gpt(config, corpus->text.tokenizer.size());
  Console console(false, ProgressMode::never);
  if (!threads.warning.empty()) console.warning(threads.warning);
  console.result(run_report(config, gpt, *corpus, threads));
  ranks::together([&] { require_memory(config, gpt.vocab_size(), true); });

  gpt.allocate(true);
  gpt.initialise();
  Arena arena;
  Updates updates(gpt, corpus->train, arena);
  const double per_update = measured(updates);
  const Index evaluations = 1 + (config.eval_interval > 0 ? config.max_iters / config.eval_interval : 1);
  const double batches = static_cast<double>(config.max_iters * config.gradient_accumulation_steps) +
                         static_cast<double>(evaluations * config.eval_iters * 2) / 3.0;
  console.result(cat("time       about ",
                     duration_text(batches * per_update / static_cast<double>(config.gradient_accumulation_steps)),
                     " (", fixed(1000.0 * per_update, 1), " ms an update, measured), evaluations included"));
}

}  // namespace qkgpt
