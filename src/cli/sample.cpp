#include <cstdio>
#include <optional>

#include "base/file.h"
#include "base/text.h"
#include "base/utf8.h"
#include "cli/commands.h"
#include "cli/model_file.h"
#include "cli/options.h"
#include "cli/output.h"
#include "model/generate.h"

namespace qkgpt {
namespace {

const Command& command() {
  static const Command c = {
      .name = "sample",
      .synopsis = "RUN|CHECKPOINT [options]",
      .summary = "Writes text with a trained model to stdout, the prompt included. RUN stands for its best checkpoint.",
      .least_positionals = 1,
      .most_positionals = 1,
      .options = {{"prompt", "TEXT", "a newline", "text to go on from; \\n, \\t and \\\\ are understood"},
                  {"prompt-file", "FILE", "", "the prompt, taken byte for byte"},
                  {"no-escape", "", "", "take --prompt and --stop as they are"},
                  {"length", "N", "500", "characters after the prompt"},
                  {"num-samples", "N", "1", "samples, separated by a line of dashes"},
                  {"temperature", "X", "0.8", "0: always the most likely character"},
                  {"top-k", "K", "0", "only the K most likely characters, 0: all"},
                  {"top-p", "P", "1", "only the fewest most likely characters that reach probability P"},
                  {"seed", "N", "1337", "sample i depends on the seed and i alone"},
                  {"stop", "TEXT", "", "end where this text first occurs in what is written"},
                  {"threads", "N", "0", "0: what OpenMP gives"}}};
  return c;
}

std::string unescaped(const std::string& text, const char* option) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\') {
      out += text[i];
      continue;
    }
    const char next = ++i < text.size() ? text[i] : '\0';
    if (next == 'n')
      out += '\n';
    else if (next == 't')
      out += '\t';
    else if (next == '\\')
      out += '\\';
    else
      throw Error(ErrorKind::usage, cat("--", std::string_view(option),
                                        ": a lone backslash; write \\\\, or \\n, \\t, or give --no-escape"));
  }
  return out;
}

std::string default_prompt(const Tokenizer& tokenizer) {
  if (tokenizer.id(U'\n') >= 0) return "\n";
  const std::string first = tokenizer.decode(std::vector<std::int32_t>{0});
  std::fputs(cat("qkgpt: the model knows no newline; starting from ", described(tokenizer.code_point(0)), "\n").c_str(),
             stderr);
  return first;
}

}  // namespace

int sample_command(const std::vector<std::string>& arguments) {
  const Arguments a = parse_arguments(command(), arguments);
  if (a.has("help")) return write_out(command_help(command())), 0;
  const SampleOptions options = {.temperature = a.real("temperature", 0.8, 0.0),
                                 .top_k = a.integer("top-k", 0, 0),
                                 .top_p = a.real("top-p", 1.0, 0.0, 1.0, true)};
  const Index length = a.integer("length", 500, 0), samples = a.integer("num-samples", 1, 1);
  const std::uint64_t seed = a.unsigned_integer("seed", 1337);
  if (a.has("prompt") && a.has("prompt-file"))
    throw Error(ErrorKind::usage, "--prompt: contradicts --prompt-file; give one of the two");
  const auto text = [&](const char* name) {
    return a.has("no-escape") ? a.get(name, "") : unescaped(a.get(name, ""), name);
  };
  std::string prompt = a.has("prompt-file") ? read_file(a.get("prompt-file", "")) : text("prompt");
  const std::string stop_text = text("stop");

  const auto model = load_model(a.positionals[0], a.integer("threads", 0, 0));
  const Tokenizer& tokenizer = model->checkpoint.tokenizer;
  if (prompt.empty()) prompt = default_prompt(tokenizer);
  const std::vector<std::int32_t> context =
      tokenizer.encode(prompt, a.has("prompt-file") ? "--prompt-file" : "--prompt");
  for (Index i = 0; i < samples; ++i) {
    if (i > 0 && !write_out("\n---------------\n")) return 0;
    if (!write_out(prompt)) return 0;
    std::string written;
    bool open = true;
    generate(model->gpt, context, length, options, Stream(seed, "sample", i), [&](std::int32_t id) {
      const std::string character = tokenizer.decode({&id, 1});
      written += character;
      open = write_out(character);
      return open && (stop_text.empty() || !written.ends_with(stop_text));
    });
    if (!open) return 0;
  }
  write_out("\n");
  return 0;
}

}  // namespace qkgpt
