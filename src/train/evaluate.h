// Losses on fixed windows. Nothing here touches weights or the random streams of training.
#pragma once
#include "base/watch.h"
#include "model/gpt.h"
#include "train/corpus.h"

namespace qkgpt {

// `watch` is called between batches.

// Mean loss over eval_iters batches of batch_size windows, drawn once per (seed, split): the same at every
// evaluation and for every attention kind.
double estimate_loss(const Gpt& gpt, const Split& split, Arena& arena, const Watch& watch = {});

// Mean loss over every token of the split but the first, in consecutive windows of block_size.
double full_loss(const Gpt& gpt, const Split& split, Arena& arena, const Watch& watch = {});

// Diagnostics of every layer on the windows of the first evaluation batch.
std::vector<AttentionStats> attention_diagnostics(const Gpt& gpt, const Split& split, Arena& arena);

// CRC-32 over the window offsets of the first 100 updates and of all evaluation batches: equal for runs that see
// the same data in the same order.
std::uint32_t windows_crc(const Config& config, const Corpus& corpus);

}  // namespace qkgpt
