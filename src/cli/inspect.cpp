#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "cli/commands.h"
#include "cli/model_file.h"
#include "cli/options.h"
#include "cli/output.h"

namespace qkgpt {
namespace {
int run(const Arguments& a);
}

const Command& inspect_command() {
  static const Command c = {
      .name = "inspect",
      .brief = "verify a checkpoint and print what is in it",
      .synopsis = "RUN|CHECKPOINT [--json]",
      .summary = "Verifies a checkpoint and prints what is in it. RUN stands for its last.safetensors.",
      .least_positionals = 1,
      .most_positionals = 1,
      .options = {{"json", "", "", "one JSON object"}},
      .run = run,
  };
  return c;
}

namespace {

using Json = nlohmann::ordered_json;

Json description(const Checkpoint& c, const Gpt& gpt) {
  const Params& p = gpt.params();
  Json tensors = Json::array();
  for (const TensorEntry& t : c.file.tensors())
    tensors.push_back({{"name", t.name}, {"dtype", dtype_name(t.dtype)}, {"shape", t.shape}});
  const bool best = c.state.best_step >= 0;
  return {{"file", c.path},
          {"bytes", c.file.size()},
          {"format_version", checkpoint_version},
          {"step", c.state.step},
          {"best_step", best ? Json(c.state.best_step) : Json(nullptr)},
          {"best_val_loss", best ? Json(c.state.best_val_loss) : Json(nullptr)},
          {"parameters", p.count()},
          {"parameters_without_positions", gpt.count_without_positions()},
          {"decayed", {{"tensors", p.tensors(true)}, {"parameters", p.count(true)}}},
          {"not_decayed", {{"tensors", p.tensors(false)}, {"parameters", p.count(false)}}},
          {"text_sha256", c.text_sha256},
          {"vocab_size", c.tokenizer.size()},
          {"vocabulary", c.tokenizer.shown(c.tokenizer.size())},
          {"config", Json::parse(to_json(c.config, true))},
          {"tensors", tensors}};
}

std::string lines(const Json& d) {
  const auto group = [&](const char* name) {
    return cat(d[name]["tensors"].get<Index>(), " tensors, ", grouped(d[name]["parameters"].get<Index>()),
               " parameters");
  };
  std::string out =
      cat(d["file"].get<std::string>(), ": valid, ", bytes_text(d["bytes"].get<double>()), ", format version ",
          d["format_version"].get<std::string>(), "\nstep        ", d["step"].get<Index>());
  if (!d["best_step"].is_null())
    out += cat("\nbest        val loss ", fixed(d["best_val_loss"].get<double>(), 4), " at step ",
               d["best_step"].get<Index>());
  out +=
      cat("\nparameters  ", grouped(d["parameters"].get<Index>()), ", ",
          grouped(d["parameters_without_positions"].get<Index>()), " without positions\ndecayed     ", group("decayed"),
          "\nnot decayed ", group("not_decayed"), "\nvocabulary  ", d["vocab_size"].get<Index>(), ": ",
          d["vocabulary"].get<std::string>(), "\ntext        sha256 ", d["text_sha256"].get<std::string>(), "\n");
  std::string config = "config     ";
  for (const auto& [key, value] : d["config"].items()) config += cat(" ", key, "=", value.dump());
  out += folded(config);
  for (const Json& t : d["tensors"])
    out += cat("\n  ", t["name"].get<std::string>(), " ", t["dtype"].get<std::string>(), " ", t["shape"].dump());
  return out + "\n";
}

int run(const Arguments& a) {
  const Checkpoint c = read_checkpoint(checkpoint_path(a.positionals[0], true));
  Gpt gpt(c.config, c.tokenizer.size());
  const Json d = description(c, gpt);
  write_out(a.has("json") ? d.dump(2) + "\n" : lines(d));
  return 0;
}

}  // namespace
}  // namespace qkgpt
