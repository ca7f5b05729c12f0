#include "base/text.h"
#include "cli/commands.h"
#include "cli/model_file.h"
#include "cli/options.h"
#include "cli/output.h"
#include "train/huggingface.h"

namespace qkgpt {
namespace {
int run(const Arguments& a);
}

const Command& export_command() {
  static const Command c = {
      .name = "export",
      .brief = "write a Hugging Face GPT-2 directory",
      .synopsis = "RUN|CHECKPOINT DIR [--overwrite]",
      .summary =
          "Writes a Hugging Face GPT-2 directory: weights, config and tokenizer. RUN stands for its best "
          "checkpoint. Only attention=standard is GPT-2; every other kind is refused.",
      .least_positionals = 2,
      .most_positionals = 2,
      .options = {{"overwrite", "", "", "write into a directory that holds other files"}},
      .run = run,
  };
  return c;
}

namespace {

int run(const Arguments& a) {
  const std::string& path = a.positionals[1];
  const auto model = load_model(a.positionals[0], 1);
  const Checkpoint& c = model->checkpoint;
  if (const std::string what = beyond_gpt2(c.config.attention); !what.empty())
    throw Error(ErrorKind::usage, cat("attention: \"", std::string_view(row(c.config.attention).name), "\" in ", c.path,
                                      " cannot be exported, GPT-2 has no place for ", what, "; only \"",
                                      std::string_view(row(Attention::standard).name), "\" can"));
  require_export_place(path, a.has("overwrite"));
  {
    const RunDirectory directory(path);  // its lock keeps a second export out
    write_huggingface(directory, model->gpt, c);
  }
  write_out(cat("exported ", c.path, " (step ", c.state.step, ") to ", path, "\n"));
  return 0;
}

}  // namespace
}  // namespace qkgpt
