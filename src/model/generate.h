// Sampling text from a model, one token at a time.
#pragma once
#include <functional>
#include <vector>

#include "base/rng.h"
#include "model/gpt.h"

namespace qkgpt {

struct SampleOptions {
  double temperature = 0.8;  // 0: always the most likely token
  Index top_k = 0;           // only the k most likely; 0: all. Of equal ones the lowest ids
  double top_p = 1.0;        // then only the fewest most likely whose probabilities reach p together
};

// Draws from softmax(logits (V) / temperature), restricted as `options` says; `uniform` in [0, 1) decides.
// Error(diverged) when a logit is not finite.
std::int32_t draw_token(const float* logits, Index vocab_size, const SampleOptions& options, double uniform);

// Continues `context` (at least one token) by up to `length` tokens. The model sees the last block_size tokens.
// Draw i uses number i of the stream. `sink` gets every token and says whether to go on.
void generate(const Gpt& gpt, std::vector<std::int32_t> context, Index length, const SampleOptions& options,
              const Stream& stream, const std::function<bool(std::int32_t)>& sink);

}  // namespace qkgpt
