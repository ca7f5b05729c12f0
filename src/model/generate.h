// Sampling text from a model, one token at a time.
#pragma once
#include <functional>
#include <span>
#include <vector>

#include "base/rng.h"
#include "model/gpt.h"

namespace qkgpt {

struct SampleOptions {
  double temperature = 0.8;  // 0: always the most likely token
  Index top_k = 0;           // only the k most likely; 0: all. Of equal ones the lowest ids
  double top_p = 1.0;        // then only the fewest most likely whose probabilities reach p together
};

// Work space of draw_token, to be kept from one draw to the next.
struct Candidate {
  double weight;
  std::int32_t id;
};

// Draws from softmax(logits (V) / temperature), restricted as `options` says; `uniform` in [0, 1) decides.
// Error(diverged) when a logit is not finite.
std::int32_t draw_token(const float* logits, Index vocab_size, const SampleOptions& options, double uniform,
                        std::vector<Candidate>& space);

// Continuations of one context that grow side by side, a token each at a time. Every token is drawn from the logits
// that Gpt::logits gives for the last block_size tokens, to the bit, and draw i of a continuation uses number i of its
// stream: what one becomes does not depend on the others.
class Continuations {
 public:
  // context: at least one token; streams: one for each continuation. Computes the first logits.
  Continuations(const Gpt& gpt, std::span<const std::int32_t> context, const SampleOptions& options,
                std::span<const Stream> streams);
  Continuations(const Continuations&) = delete;
  Continuations& operator=(const Continuations&) = delete;

  // Called with the number of the continuation and its token; false ends that continuation.
  using Sink = std::function<bool(Index, std::int32_t)>;

  // Draws a token for every continuation that has not ended. Error(diverged) when a logit is not finite.
  void draw(const Sink& sink);

  // The logits after the tokens drawn. Several objects may do this at once, each on a thread of its own.
  void compute();

  bool ended() const { return running_.empty(); }

 private:
  struct Sequence {
    Index number;
    Stream stream;
    std::vector<std::int32_t> window;  // the last tokens, at most block_size
    KeyValueCache cache;               // of the first tokens of the window
    bool ended = false;
  };

  const Gpt& gpt_;
  SampleOptions options_;
  Arena arena_;
  Tape tape_;
  std::vector<Sequence> running_;  // all of the same length
  std::vector<float> logits_;      // (running, V)
  std::vector<Candidate> space_;
  std::uint64_t draws_ = 0;
};

// One continuation of up to `length` tokens. `sink` gets every token and says whether to go on.
void generate(const Gpt& gpt, std::span<const std::int32_t> context, Index length, const SampleOptions& options,
              const Stream& stream, const std::function<bool(std::int32_t)>& sink);

}  // namespace qkgpt
