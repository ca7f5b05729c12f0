#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <numbers>

#include "base/text.h"
#include "cli/commands.h"
#include "cli/model_file.h"
#include "cli/options.h"
#include "cli/output.h"
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
      .run = run,
  };
  return c;
}

namespace {

int run(const Arguments& a) {
  const std::string name = a.get("split", "val");
  if (name != "val" && name != "train")
    throw Error(ErrorKind::usage, cat("--split: '", name, "' is unknown; expected val or train"));

  const auto model = load_model(a.positionals[0], a.integer("threads", 0, 0));
  const Checkpoint& c = model->checkpoint;
  Console console(false, ProgressMode::automatic);
  const std::string data = a.get("data", c.config.data);
  const Corpus corpus(data, c.config.val_fraction, &c.tokenizer,
                      [&](double done) { console.progress(cat("reading ", data, " ", fixed(100.0 * done, 0), "%")); });
  if (!a.has("data") && corpus.sha256 != c.text_sha256)
    console.warning(cat("WARNING: ", corpus.path, " is not the text of this run any more (sha256 ", corpus.sha256,
                        ", then ", c.text_sha256, ")"));
  const Split& split = name == "val" ? corpus.val : corpus.train;
  if (split.size() < 2)
    throw Error(ErrorKind::usage, cat("--split: ", name, " has ", split.size(), " characters; at least 2 are needed",
                                      name == "val" ? ", --split=train may have them" : ""));
  Arena arena;
  const double loss = full_loss(model->gpt, split, arena, [&](double done) {
    console.progress(cat("evaluating ", name, " ", fixed(100.0 * done, 0), "%"));
  });
  console.clear();
  const double bits = loss / std::numbers::ln2, perplexity = std::exp(loss);
  if (a.has("json")) {
    nlohmann::ordered_json row = {{"checkpoint", c.path},  {"step", c.state.step},           {"data", corpus.path},
                                  {"split", name},         {"characters", split.size() - 1}, {"loss", loss},
                                  {"bits_per_char", bits}, {"perplexity", perplexity}};
    write_out(row.dump() + "\n");
  } else {
    write_out(cat(name, " loss ", fixed(loss, 4), " nats per character, ", fixed(bits, 4),
                  " bits per character, perplexity ", fixed(perplexity, 3), " (", grouped(split.size() - 1),
                  " characters, step ", c.state.step, ")\n"));
  }
  if (!std::isfinite(loss)) throw Error(ErrorKind::diverged, "loss: not finite; take an earlier checkpoint");
  return 0;
}

}  // namespace
}  // namespace qkgpt
