#include "train/report.h"

#include "base/text.h"
#include "base/version.h"
#include "kernels/simd.h"

namespace qkgpt {
namespace {

std::string text_lines(const Corpus& corpus, Index block_size) {
  const Text& text = corpus.text;
  std::string out = cat("text       ", corpus.path, ": ", grouped(text.tokens.size()), " characters");
  if (text.carriage_returns > 0) out += cat(", ", grouped(text.carriage_returns), " carriage returns among them");
  if (text.bom) out += ", byte order mark dropped";
  out += cat("\n           train ", grouped(corpus.train.size()), ", ");
  out +=
      corpus.val.size() > 0 ? cat("val ", grouped(corpus.val.size())) : std::string("no validation (val_fraction 0)");
  out += cat(", windows of ", block_size);
  const Index V = text.tokenizer.size();
  out += cat("\nvocabulary ", V, " characters (character level)\n           ", text.tokenizer.shown(V <= 65 ? V : 50));
  return out;
}

std::string scale_text(const Config& c) {
  const AttentionRow& kind = row(c.attention);
  const double d = static_cast<double>(c.n_embd) / static_cast<double>(c.n_head);
  switch (kind.scale) {
    case LogitScale::inverse_sqrt:
      return cat("scale 1/sqrt(", d, ")", kind.cap ? cat(", scores capped at ", c.softcap) : std::string());
    case LogitScale::temperature: return "scale a/sqrt(" + shortest(d) + "), a learned from 1";
    case LogitScale::learned: return "scale g learned from " + fixed(qk_scale_init(c), 3);
    case LogitScale::fixed: return "scale g = " + fixed(qk_scale_init(c), 3);
  }
  return "";
}

std::string group_text(const Params& params, bool decay) {
  return cat(params.tensors(decay), " tensors, ", grouped(params.count(decay)), " parameters");
}

}  // namespace

std::string run_report(const Config& c, const Gpt& gpt, const Corpus& corpus, const Threads& threads) {
  std::string out = cat("qkgpt ", std::string_view(version()), "\n", text_lines(corpus, c.block_size));
  out += cat("\nmodel      ", counted(c.n_layer, "layer"), ", ", counted(c.n_head, "head"), ", ",
             counted(c.n_embd, "channel"), ", context ", c.block_size, "\n           attention ",
             std::string_view(row(c.attention).name), ", ", scale_text(c));
  out += cat("\n           ", grouped(gpt.params().count()), " parameters, ", grouped(gpt.count_without_positions()),
             " without positions (as nanoGPT counts)");
  out += cat("\noptimiser  AdamW; decayed: ", group_text(gpt.params(), true),
             "\n           not decayed: ", group_text(gpt.params(), false));
  out += cat("\nupdate     ", grouped(c.batch_size * c.gradient_accumulation_steps * c.block_size), " tokens (",
             c.gradient_accumulation_steps, " x ", c.batch_size, " x ", c.block_size, "), ",
             counted(c.max_iters, "update"));
  out += cat("\nmachine    ", threads.why, ", ", std::string_view(simd_name), " (built for ",
             std::string_view(build_arch()), "), memory about ", bytes_text(memory_estimate(c, gpt.vocab_size(), true)),
             threads.ranks.empty() ? "" : " a rank");
  if (!threads.ranks.empty()) out += "\nranks      " + threads.ranks;
  return out;
}

void require_memory(const Config& config, Index vocab_size, bool training) {
  const double need = memory_estimate(config, vocab_size, training), have = available_memory();
  if (have > 0.0 && need > have)
    throw Error(ErrorKind::usage, cat("memory: this config needs about ", bytes_text(need), " and ", bytes_text(have),
                                      " are available; lower n_layer, n_embd, block_size or batch_size"));
}

}  // namespace qkgpt
