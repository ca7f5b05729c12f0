// A model as a Hugging Face GPT-2 directory: config.json, model.safetensors, tokenizer.json, tokenizer_config.json
// (github.com/huggingface/transformers, models/gpt2).
#pragma once
#include <string>

#include "train/checkpoint.h"
#include "train/run_directory.h"

namespace qkgpt {

// What of this kind of attention GPT-2 there has no place for; "" for `standard`, which it is.
std::string beyond_gpt2(Attention kind);

// Error(usage) when `path` holds a run, or files other than hidden ones that are no export and `overwrite` is not
// given. An earlier export may be replaced. Writes nothing.
void require_export_place(const std::string& path, bool overwrite);

// Writes the four files, each durably; others stay. The weights go first and config.json, without which nothing loads,
// last: half an export of a new directory is never taken for a whole one. The model has its weights and is `standard`.
void write_huggingface(const RunDirectory& directory, const Gpt& gpt, const Checkpoint& origin);

}  // namespace qkgpt
