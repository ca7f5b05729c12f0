#include "train/evaluate.h"

#include <cmath>
#include <numeric>

#include "base/crc32.h"
#include "base/signals.h"
#include "ranks/ranks.h"

namespace qkgpt {
namespace {

struct Batch {
  std::vector<std::int32_t> inputs, targets;  // (rows, block_size)

  Batch(Index rows, Index block_size) : inputs(static_cast<std::size_t>(rows * block_size)), targets(inputs.size()) {}
};

// The sum of entry(0) ... entry(n - 1), in this order; the ranks take entries in turn. Together.
double sum_over_ranks(Index n, const Watch& watch, const std::function<double(Index)>& entry) {
  double sum = 0.0;
  for (Index first = 0; first < n; first += ranks::count()) {
    if (watch) watch(static_cast<double>(first) / static_cast<double>(n));
    const Index mine = first + ranks::rank();
    for (const double part : ranks::gathered(mine < n ? entry(mine) : 0.0)) sum += part;
  }
  return sum;
}

Batch evaluation_batch(const Config& c, const Split& split, Index number) {
  Batch batch(c.batch_size, c.block_size);
  for (Index row = 0; row < c.batch_size; ++row)
    split.read(eval_window(c.seed, split.name, number, row, split.windows(c.block_size)), c.block_size,
               batch.inputs.data() + row * c.block_size, batch.targets.data() + row * c.block_size);
  return batch;
}

}  // namespace

double estimate_loss(const Gpt& gpt, const Split& split, Arena& arena, const Watch& watch) {
  const Config& c = gpt.config();
  Tape tape(arena, false);
  std::vector<double> losses(static_cast<std::size_t>(c.batch_size * c.block_size));
  const double sum = sum_over_ranks(c.eval_iters, watch, [&](Index i) {
    const Batch batch = evaluation_batch(c, split, i);
    tape.reset();
    gpt.loss(tape, batch.inputs.data(), batch.targets.data(), c.batch_size, c.block_size, {}, losses.data());
    return std::accumulate(losses.begin(), losses.end(), 0.0);
  });
  return sum / static_cast<double>(c.eval_iters) / static_cast<double>(losses.size());
}

double full_loss(const Gpt& gpt, const Split& split, Arena& arena, const Watch& watch) {
  const Config& c = gpt.config();
  const Index T = c.block_size, predicted = split.size() - 1;
  check(predicted > 0, "full_loss needs two tokens");
  Tape tape(arena, false);
  std::vector<double> losses(static_cast<std::size_t>(c.batch_size * T));
  const Index whole = predicted / T, batches = (whole + c.batch_size - 1) / c.batch_size;
  const double sum = sum_over_ranks(batches + (predicted % T ? 1 : 0), watch, [&](Index i) {
    // as many whole windows as a batch holds; at the end what is left as one shorter window
    const Index begin = i < batches ? i * c.batch_size * T : whole * T;
    const Index batch = i < batches ? std::min(c.batch_size, whole - i * c.batch_size) : 1;
    const Index time = i < batches ? T : predicted % T;
    Batch windows(batch, time);
    for (Index r = 0; r < batch; ++r)
      split.read(begin + r * T, time, windows.inputs.data() + r * T, windows.targets.data() + r * T);
    tape.reset();
    gpt.loss(tape, windows.inputs.data(), windows.targets.data(), batch, time, {}, losses.data());
    return std::accumulate(losses.begin(), losses.begin() + batch * time, 0.0);
  });
  return sum / static_cast<double>(predicted);
}

std::vector<AttentionStats> attention_diagnostics(const Gpt& gpt, const Split& split, Arena& arena) {
  const Config& c = gpt.config();
  const Batch batch = evaluation_batch(c, split, 0);
  std::vector<AttentionStats> layers;
  Tape tape(arena, false);
  gpt.logits(
      tape, batch.inputs.data(), c.batch_size, c.block_size, {},
      [&](Index, const Tensor& qkv, const AttentionSpec& spec) { layers.push_back(attention_stats(qkv, spec)); });
  return layers;
}

std::uint32_t windows_crc(const Config& c, const Corpus& corpus) {
  std::uint32_t crc = 0;
  const auto add = [&crc](Index offset) {
    std::byte bytes[8];
    for (int i = 0; i < 8; ++i) bytes[i] = static_cast<std::byte>(static_cast<std::uint64_t>(offset) >> (8 * i));
    crc = crc32(bytes, crc);
  };
  for (Index step = 0; step < 100; ++step)
    for (Index micro = 0; micro < c.gradient_accumulation_steps; ++micro)
      for (Index row = 0; row < c.batch_size; ++row)
        add(train_window(c.seed, step, micro, row, corpus.train.windows(c.block_size)));
  for (const Split& split : {corpus.train, corpus.val})
    if (split.size() > c.block_size)
      for (Index batch = 0; batch < c.eval_iters; ++batch) {
        stop_if_asked();
        for (Index row = 0; row < c.batch_size; ++row)
          add(eval_window(c.seed, split.name, batch, row, split.windows(c.block_size)));
      }
  return crc;
}

}  // namespace qkgpt
