// The report before training, and what a dry run prints.
#pragma once
#include <string>

#include "model/gpt.h"
#include "train/corpus.h"
#include "train/threads.h"

namespace qkgpt {

// Several lines: text, vocabulary, model, optimiser, threads, memory.
std::string run_report(const Config& config, const Gpt& gpt, const Corpus& corpus, const Threads& threads);

// Error(usage) with both numbers when the machine has not enough memory for this config.
void require_memory(const Config& config, Index vocab_size, bool training);

}  // namespace qkgpt
