// The state of a run as one safetensors file with a SHA-256 trailer.
#pragma once
#include <optional>
#include <string>

#include "data/tokenizer.h"
#include "format/safetensors.h"
#include "model/gpt.h"

namespace qkgpt {

inline constexpr const char* checkpoint_version = "1";

// What the trainer knows besides weights and moments.
struct RunState {
  Index step = 0;        // updates made
  Index best_step = -1;  // of the lowest validation loss so far; -1: none
  double best_val_loss = 0.0;
  Index evals_since_best = 0;
  Index last_eval_step = -1;  // the evaluation due at this step has been made
};

struct Checkpoint {
  std::string path;
  SafetensorsFile file;
  Config config;  // without out_dir and threads
  Tokenizer tokenizer;
  std::string text_sha256;
  RunState state;
};

// A run directory stands for its best.safetensors, with a notice on stderr for its last.safetensors where there is no
// best; with `newest` for last.safetensors. Error(usage) where there is neither, or nothing of that name.
std::string checkpoint_path(const std::string& run_or_checkpoint, bool newest);

// With every tensor that its config asks for and no other. Error(checkpoint) for a damaged or foreign file, with what
// is wrong; Error(usage) when it is absent.
Checkpoint read_checkpoint(const std::string& path);

// Together: rank 0's, or none where it has none, everywhere.
void share(std::optional<Checkpoint>& checkpoint);

// Saves durably (base/file.h); two runs with the same result write the same bytes. Error(disk).
void save_checkpoint(const std::string& path, const Gpt& gpt, const Config& config, const Tokenizer& tokenizer,
                     const std::string& text_sha256, const RunState& state);

// Bytes that save_checkpoint would write.
Index checkpoint_size(const Gpt& gpt, const Config& config, const Tokenizer& tokenizer, const std::string& text_sha256);

// Error(checkpoint) when a weight or moment of such a model is missing, surplus or of another shape or type.
void check_tensors(const Checkpoint& checkpoint, const Gpt& gpt);

// Copy into a model whose memory is there, after check_tensors: weights and moments, or weights only (sampling,
// evaluation, init_from).
void load_state(const Checkpoint& checkpoint, Gpt& gpt);
void load_weights(const Checkpoint& checkpoint, Gpt& gpt);

bool weights_finite(const Gpt& gpt);

}  // namespace qkgpt
