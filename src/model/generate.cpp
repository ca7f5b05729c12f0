#include "model/generate.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace qkgpt {

std::int32_t draw_token(const float* logits, Index V, const SampleOptions& options, double uniform) {
  for (Index v = 0; v < V; ++v)
    if (!std::isfinite(logits[v]))
      throw Error(ErrorKind::diverged, "logits: not finite; this model has diverged, take an earlier checkpoint");
  std::vector<std::int32_t> ids(static_cast<std::size_t>(V));
  std::iota(ids.begin(), ids.end(), 0);
  std::stable_sort(ids.begin(), ids.end(), [&](std::int32_t a, std::int32_t b) { return logits[a] > logits[b]; });
  if (options.temperature == 0.0) return ids[0];
  if (options.top_k > 0 && options.top_k < V) ids.resize(static_cast<std::size_t>(options.top_k));

  std::vector<double> weight;
  for (const std::int32_t id : ids)
    weight.push_back(
        std::exp((static_cast<double>(logits[id]) - static_cast<double>(logits[ids[0]])) / options.temperature));
  double total = std::accumulate(weight.begin(), weight.end(), 0.0);
  if (options.top_p < 1.0) {
    double sum = 0.0;
    std::size_t kept = 0;
    while (kept < weight.size() && (kept == 0 || sum < options.top_p * total)) sum += weight[kept++];
    weight.resize(kept);
    total = sum;
  }
  double rest = uniform * total;
  for (std::size_t i = 0; i < weight.size(); ++i)
    if ((rest -= weight[i]) < 0.0) return ids[i];
  return ids[weight.size() - 1];
}

void generate(const Gpt& gpt, std::vector<std::int32_t> context, Index length, const SampleOptions& options,
              const Stream& stream, const std::function<bool(std::int32_t)>& sink) {
  check(!context.empty(), "generate needs a context");
  Arena arena;
  Tape tape(arena, false);
  for (Index i = 0; i < length; ++i) {
    const Index time = std::min(static_cast<Index>(context.size()), gpt.config().block_size);
    tape.reset();
    const Tensor logits =
        gpt.logits(tape, context.data() + static_cast<Index>(context.size()) - time, 1, time, {}).value;
    const std::int32_t token = draw_token(logits.data + (time - 1) * gpt.vocab_size(), gpt.vocab_size(), options,
                                          stream.uniform(static_cast<std::uint64_t>(i)));
    context.push_back(token);
    if (!sink(token)) return;
  }
}

}  // namespace qkgpt
