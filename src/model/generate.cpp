#include "model/generate.h"

#include <algorithm>
#include <cmath>

namespace qkgpt {

std::int32_t draw_token(const float* logits, Index V, const SampleOptions& options, double uniform,
                        std::vector<Candidate>& space) {
  for (Index v = 0; v < V; ++v)
    if (!std::isfinite(logits[v]))
      throw Error(ErrorKind::diverged, "logits: not finite; this model has diverged, take an earlier checkpoint");
  if (options.temperature == 0.0) return static_cast<std::int32_t>(std::max_element(logits, logits + V) - logits);

  space.clear();
  for (Index v = 0; v < V; ++v) space.push_back({static_cast<double>(logits[v]), static_cast<std::int32_t>(v)});
  auto end = space.begin() + (options.top_k > 0 ? std::min(options.top_k, V) : V);
  const auto more_likely = [](const Candidate& a, const Candidate& b) {
    return a.weight > b.weight || (a.weight == b.weight && a.id < b.id);
  };
  std::nth_element(space.begin(), end, space.end(), more_likely);
  std::sort(space.begin(), end, more_likely);

  double total = 0.0;
  const double largest = space[0].weight;
  for (auto c = space.begin(); c != end; ++c)
    total += c->weight = std::exp((c->weight - largest) / options.temperature);
  if (options.top_p < 1.0) {
    double sum = 0.0;
    auto c = space.begin();
    while (c != end && (c == space.begin() || sum < options.top_p * total)) sum += c++->weight;
    end = c;
    total = sum;
  }
  double rest = uniform * total;
  for (auto c = space.begin(); c != end; ++c)
    if ((rest -= c->weight) < 0.0) return c->id;
  return std::prev(end)->id;
}

Continuations::Continuations(const Gpt& gpt, std::span<const std::int32_t> context, const SampleOptions& options,
                             std::span<const Stream> streams)
    : gpt_(gpt), options_(options), tape_(arena_, false) {
  check(!context.empty() && !streams.empty(), "continuations need a context and streams");
  const auto seen = context.last(std::min(context.size(), static_cast<std::size_t>(gpt.config().block_size)));
  running_.push_back({0, streams[0], {seen.begin(), seen.end()}, gpt.cache()});
  compute();
  for (std::size_t i = 1; i < streams.size(); ++i) {  // the others start from the same
    running_.push_back(running_[0]);
    running_[i].number = static_cast<Index>(i);
    running_[i].stream = streams[i];
    logits_.insert(logits_.end(), logits_.begin(), logits_.begin() + gpt.vocab_size());
  }
}

void Continuations::draw(const Sink& sink) {
  const float* logits = logits_.data();
  for (Sequence& s : running_) {
    const std::int32_t token = draw_token(logits, gpt_.vocab_size(), options_, s.stream.uniform(draws_), space_);
    if (static_cast<Index>(s.window.size()) == gpt_.config().block_size) {
      s.window.erase(s.window.begin());  // every token moves to another position, so nothing of the cache is left
      s.cache.clear();
    }
    s.window.push_back(token);
    s.ended = !sink(s.number, token);
    logits += gpt_.vocab_size();
  }
  std::erase_if(running_, [](const Sequence& s) { return s.ended; });
  ++draws_;
}

void Continuations::compute() {
  const Index V = gpt_.vocab_size(), count = static_cast<Index>(running_.size());
  logits_.resize(static_cast<std::size_t>(count * V));
  std::vector<KeyValueCache*> caches;
  std::vector<std::int32_t> tokens;
  for (Index i = 0; i < count; ++i) {
    Sequence& s = running_[static_cast<std::size_t>(i)];
    const Index time = static_cast<Index>(s.window.size()) - s.cache.length();
    caches.push_back(&s.cache);
    tokens.insert(tokens.end(), s.window.end() - time, s.window.end());
    if (time == 1 && i + 1 < count) continue;  // single tokens go together, whole windows one by one
    tape_.reset();
    const Tensor logits = gpt_.next_logits(tape_, tokens.data(), time, caches).value;
    std::copy_n(logits.data, logits.size(), logits_.data() + (i + 1) * V - logits.size());
    caches.clear();
    tokens.clear();
  }
}

void generate(const Gpt& gpt, std::span<const std::int32_t> context, Index length, const SampleOptions& options,
              const Stream& stream, const std::function<bool(std::int32_t)>& sink) {
  if (length == 0) return;
  Continuations one(gpt, context, options, {&stream, 1});
  for (Index i = 0; i < length && !one.ended(); ++i) {
    if (i > 0) one.compute();
    one.draw([&](Index, std::int32_t token) { return sink(token); });
  }
}

}  // namespace qkgpt
