#include <algorithm>
#include <cstdio>
#include <deque>
#include <exception>
#include <mutex>

#include "base/file.h"
#include "base/text.h"
#include "base/utf8.h"
#include "cli/commands.h"
#include "cli/model_file.h"
#include "cli/options.h"
#include "cli/output.h"
#include "kernels/parallel.h"
#include "model/generate.h"

namespace qkgpt {
namespace {
int run(const Arguments& a);
}

const Command& sample_command() {
  static const Command c = {
      .name = "sample",
      .brief = "write text with a trained model",
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
                  {"threads", "N", "0", "0: what OpenMP gives"}},
      .run = run,
  };
  return c;
}

namespace {

constexpr Index samples_at_once = 16;  // bounds the memory

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

struct Request {
  std::string prompt, stop;  // stop empty: none
  Index length;
  SampleOptions options;
  std::uint64_t seed;
};

// Samples that come side by side, on stdout one after another: the first that has not ended is shown while it comes,
// the others wait. Any thread may add.
class Display {
 public:
  Display(const Request& request, Index first, Index count)
      : request_(request), first_(first), texts_(static_cast<std::size_t>(count)) {
    show_start();
    if (request.length == 0)
      while (++shown_ < count) show_start();
  }

  // Returns whether this sample goes on.
  bool add(Index sample, const std::string& character) {
    const std::lock_guard lock(mutex_);
    Text& text = texts_[static_cast<std::size_t>(sample)];
    text.written += character;
    text.ended =
        ++text.characters == request_.length || (!request_.stop.empty() && text.written.ends_with(request_.stop));
    if (sample == shown_) {
      write(character);
      while (texts_[static_cast<std::size_t>(shown_)].ended && ++shown_ < static_cast<Index>(texts_.size()))
        show_start();
    }
    return open_ && !text.ended;
  }

  bool open() const { return open_; }  // false: nobody reads any more
  void close() {
    const std::lock_guard lock(mutex_);
    open_ = false;
  }

 private:
  struct Text {
    std::string written;
    Index characters = 0;
    bool ended = false;
  };
  void write(const std::string& text) { open_ = open_ && write_out(text); }
  void show_start() {
    const char* line = first_ + shown_ > 0 ? "\n---------------\n" : "";
    write(cat(std::string_view(line), request_.prompt, texts_[static_cast<std::size_t>(shown_)].written));
  }

  const Request& request_;
  Index first_, shown_ = 0;
  std::vector<Text> texts_;
  bool open_ = true;
  std::mutex mutex_;
};

// Samples first ... first + count - 1, shared out among the threads: every one works on a group of its own and waits
// for no other. False when nobody reads any more.
bool write_samples(const LoadedModel& model, const Request& r, std::span<const std::int32_t> context, Index first,
                   Index count) {
  Display display(r, first, count);
  if (r.length == 0) return display.open();
  const Index group_count = std::min<Index>(thread_count(), count);
  std::deque<Continuations> groups;
  for (Index g = 0; g < group_count; ++g) {
    std::vector<Stream> streams;
    for (Index i = g; i < count; i += group_count) streams.emplace_back(r.seed, "sample", first + i);
    groups.emplace_back(model.gpt, context, r.options, streams);
  }
  std::vector<std::exception_ptr> faults(static_cast<std::size_t>(group_count));  // none may leave its thread
  const auto finish = [&](Index g) {
    Continuations& group = groups[static_cast<std::size_t>(g)];
    try {
      for (bool begun = false; !group.ended(); begun = true) {
        if (begun) group.compute();
        group.draw([&](Index i, std::int32_t id) {
          return display.add(g + i * group_count, model.checkpoint.tokenizer.decode({&id, 1}));
        });
      }
    } catch (...) {
      display.close();  // ends the others
      faults[static_cast<std::size_t>(g)] = std::current_exception();
    }
  };
  parallel_for(group_count, 1, [&](Index begin, Index end, int) {
    for (Index g = begin; g < end; ++g) finish(g);
  });
  for (const std::exception_ptr& fault : faults)
    if (fault) std::rethrow_exception(fault);
  return display.open();
}

int run(const Arguments& a) {
  Request r = {.prompt = {},
               .stop = {},
               .length = a.integer("length", 500, 0),
               .options = {.temperature = a.real("temperature", 0.8, 0.0),
                           .top_k = a.integer("top-k", 0, 0),
                           .top_p = a.real("top-p", 1.0, 0.0, 1.0, true)},
               .seed = a.unsigned_integer("seed", 1337)};
  const Index samples = a.integer("num-samples", 1, 1);
  if (a.has("prompt") && a.has("prompt-file"))
    throw Error(ErrorKind::usage, "--prompt: contradicts --prompt-file; give one of the two");
  const auto text = [&](const char* name) {
    return a.has("no-escape") ? a.get(name, "") : unescaped(a.get(name, ""), name);
  };
  r.prompt = a.has("prompt-file") ? read_file(a.get("prompt-file", "")) : text("prompt");
  r.stop = text("stop");

  const auto model = load_model(a.positionals[0], a.integer("threads", 0, 0));
  const Tokenizer& tokenizer = model->checkpoint.tokenizer;
  if (r.prompt.empty()) r.prompt = default_prompt(tokenizer);
  const std::vector<std::int32_t> context =
      tokenizer.encode(r.prompt, a.has("prompt-file") ? "--prompt-file" : "--prompt");
  for (Index first = 0; first < samples; first += samples_at_once)
    if (!write_samples(*model, r, context, first, std::min(samples_at_once, samples - first))) return 0;
  write_out("\n");
  return 0;
}

}  // namespace
}  // namespace qkgpt
