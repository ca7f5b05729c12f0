#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <numbers>

#include "base/text.h"
#include "cli/commands.h"
#include "cli/model_file.h"
#include "cli/options.h"
#include "cli/output.h"
#include "ranks/ranks.h"
#include "train/console.h"
#include "train/evaluate.h"

namespace qkgpt {
namespace {
int run(const Arguments& a);
}

const Command& eval_command() {
  static const Command c = {
      .name = "eval",
      .brief = "measure the loss over a whole split",
      .synopsis = "RUN|CHECKPOINT [options]",
      .summary =
          "Measures the loss over a whole split, in nats and bits per character. RUN stands for its best checkpoint.",
      .least_positionals = 1,
      .most_positionals = 1,
      .options = {{"split", "val|train", "val", "the part of the text to measure"},
                  {"data", "FILE", "the run's text", "another text, split in the same way"},
                  {"json", "", "", "one JSON object"},
                  {"threads", "N", "0", "0: what OpenMP gives"}},
      .many_ranks = true,
      .run = run,
  };
  return c;
}

namespace {

void tell(const Arguments& a, const Checkpoint& c, const Corpus& corpus, const Split& split, double loss) {
  const double bits = loss / std::numbers::ln2, perplexity = std::exp(loss);
  if (a.has("json")) {
    nlohmann::ordered_json row = {{"checkpoint", c.path},  {"step", c.state.step},           {"data", corpus.path},
                                  {"split", split.name},   {"characters", split.size() - 1}, {"loss", loss},
                                  {"bits_per_char", bits}, {"perplexity", perplexity}};
    write_out(row.dump() + "\n");
  } else {
    write_out(cat(std::string_view(split.name), " loss ", fixed(loss, 4), " nats per character, ", fixed(bits, 4),
                  " bits per character, perplexity ", fixed(perplexity, 3), " (", grouped(split.size() - 1),
                  " characters, step ", c.state.step, ")\n"));
  }
  if (!std::isfinite(loss)) throw Error(ErrorKind::diverged, "loss: not finite; take an earlier checkpoint");
}

int run(const Arguments& a) {
  const std::string name = a.get("split", "val");
  Index threads = 0;
  ranks::together([&] {
    if (name != "val" && name != "train")
      throw Error(ErrorKind::usage, cat("--split: '", name, "' is unknown; expected val or train"));
    threads = a.integer("threads", 0, 0);
  });
  const auto model = load_model(a.positionals[0], threads);
  const Checkpoint& c = model->checkpoint;
  Console console(false, ProgressMode::automatic);
  const std::string data = a.get("data", c.config.data);
  std::optional<Corpus> read;
  ranks::together([&] {
    read.emplace(data, c.config.val_fraction, &c.tokenizer,
                 [&](double done) { console.progress(cat("reading ", data, " ", fixed(100.0 * done, 0), "%")); });
  });
  const Corpus& corpus = *read;
  if (!a.has("data") && corpus.sha256 != c.text_sha256)
    console.warning(cat("WARNING: ", corpus.path, " is not the text of this run any more (sha256 ", corpus.sha256,
                        ", then ", c.text_sha256, ")"));
  const Split& split = name == "val" ? corpus.val : corpus.train;
  ranks::together([&] {
    if (split.size() < 2)
      throw Error(ErrorKind::usage, cat("--split: ", name, " has ", split.size(), " characters; at least 2 are needed",
                                        name == "val" ? ", --split=train may have them" : ""));
  });
  Arena arena;
  const double loss = full_loss(model->gpt, split, arena, [&](double done) {
    console.progress(cat("evaluating ", name, " ", fixed(100.0 * done, 0), "%"));
  });
  console.clear();
  ranks::at_first([&] { tell(a, c, corpus, split, loss); });
  return 0;
}

}  // namespace
}  // namespace qkgpt
