// Sampling: the cached forward pass against the full one, the draw against its definition.
#include "model/generate.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>

#include "catch.h"
#include "gradient_check.h"

namespace qkgpt {
namespace {

using test::Threads;
using Tokens = std::vector<std::int32_t>;
using Floats = std::vector<float>;

constexpr Index V = 65, T = 37;

// Sizes that fill no vector; every parameter differs from where training starts.
std::unique_ptr<Gpt> model(Attention attention, bool bias, Index layers = 3) {
  Config c;
  c.attention = attention, c.bias = bias;
  c.n_layer = layers, c.n_head = 3, c.n_embd = 48, c.block_size = T;
  auto gpt = std::make_unique<Gpt>(c, V);
  gpt->allocate(false);
  gpt->initialise();
  for (Param& p : gpt->params().list()) {
    const Stream stream(7, std::string_view(p.name));
    for (Index i = 0; i < p.size(); ++i)
      p.value()[i] += static_cast<float>(0.15 * stream.normal(static_cast<std::uint64_t>(i)));
    p.changed();
  }
  return gpt;
}

template <class Body>
void for_all_models(Body body) {
  for (const AttentionRow& kind : attention_table)
    for (const bool bias : {false, true}) {
      INFO(kind.name << " bias " << bias);
      body(*model(kind.kind, bias));
    }
}

Tokens tokens(Index n, std::uint64_t seed) { return test::integers(n, seed, V); }

Floats full_logits(const Gpt& gpt, const Tokens& x) {
  Arena arena;
  Tape tape(arena, false);
  const Tensor logits = gpt.logits(tape, x.data(), 1, static_cast<Index>(x.size()), {}).value;
  return Floats(logits.data, logits.data + logits.size());
}

Floats row_of(const Floats& logits, Index i) { return Floats(logits.begin() + i * V, logits.begin() + (i + 1) * V); }

// Checks the logits after every chunk of x.
void check_chunks(const Gpt& gpt, const Tokens& x, const std::vector<Index>& chunks, KeyValueCache& cache) {
  const Floats want = full_logits(gpt, x);
  Arena arena;
  Tape tape(arena, false);
  Index past = 0;
  KeyValueCache* caches[] = {&cache};
  for (const Index n : chunks) {
    tape.reset();
    const Tensor got = gpt.next_logits(tape, x.data() + past, n, caches).value;
    past += n;
    INFO("position " << past - 1);
    REQUIRE(got.size() == V);
    REQUIRE(cache.length() == past);
    REQUIRE((Floats(got.data, got.data + V) == row_of(want, past - 1)));
  }
  CHECK(past == static_cast<Index>(x.size()));
}

// What generate() stands for: a full pass over the last block_size tokens for every token.
Tokens by_full_passes(const Gpt& gpt, Tokens x, Index length, const SampleOptions& options, const Stream& stream) {
  std::vector<Candidate> space;
  const std::size_t before = x.size();
  for (Index i = 0; i < length; ++i) {
    const Floats logits = full_logits(gpt, Tokens(x.end() - std::min<Index>(static_cast<Index>(x.size()), T), x.end()));
    x.push_back(draw_token(logits.data() + logits.size() - V, V, options, stream.uniform(static_cast<std::uint64_t>(i)),
                           space));
  }
  return Tokens(x.begin() + static_cast<Index>(before), x.end());
}

Tokens generated(const Gpt& gpt, const Tokens& context, Index length, const SampleOptions& options,
                 const Stream& stream) {
  Tokens out;
  generate(gpt, context, length, options, stream, [&](std::int32_t id) { return out.push_back(id), true; });
  return out;
}

// The definition of a draw, word for word: sort, restrict, walk.
std::int32_t draw_by_sorting(const Floats& logits, const SampleOptions& options, double uniform) {
  std::vector<std::size_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0u);
  std::stable_sort(ids.begin(), ids.end(), [&](std::size_t a, std::size_t b) { return logits[a] > logits[b]; });
  if (options.temperature == 0.0) return static_cast<std::int32_t>(ids[0]);
  if (options.top_k > 0) ids.resize(std::min(ids.size(), static_cast<std::size_t>(options.top_k)));
  std::vector<double> weight;
  for (const std::size_t id : ids)
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
    if ((rest -= weight[i]) < 0.0) return static_cast<std::int32_t>(ids[i]);
  return static_cast<std::int32_t>(ids[weight.size() - 1]);
}

}  // namespace

TEST_CASE("logits from a cache have the bits of the full forward pass at every position", "[unit]") {
  for_all_models([](const Gpt& gpt) {
    const Tokens x = tokens(T, 5);
    KeyValueCache cache = gpt.cache();
    check_chunks(gpt, x, std::vector<Index>(std::size_t{T}, 1), cache);
    for (const Index prompt : {2, 16, 17, 36}) {
      std::vector<Index> chunks(static_cast<std::size_t>(T - prompt), 1);
      chunks.insert(chunks.begin(), prompt);
      cache.clear();  // what is left of the last round does not matter
      check_chunks(gpt, x, chunks, cache);
    }
    cache.clear();
    check_chunks(gpt, x, {9, 11, 1, 15, 1}, cache);
    cache.clear();
    check_chunks(gpt, tokens(T, 6), {T}, cache);
  });
}

TEST_CASE("sequences side by side have the logits that each has alone", "[unit]") {
  for_all_models([](const Gpt& gpt) {
    constexpr Index B = 7;
    std::vector<KeyValueCache> caches(std::size_t{B}, gpt.cache());
    std::vector<KeyValueCache*> pointers;
    std::vector<Tokens> x;
    for (Index b = 0; b < B; ++b) {
      pointers.push_back(&caches[static_cast<std::size_t>(b)]);
      x.push_back(tokens(12, 20 + static_cast<std::uint64_t>(b)));
    }
    Arena arena;
    Tape tape(arena, false);
    Index past = 0;
    for (const Index n : {5, 1, 4, 1, 1}) {
      Tokens chunk;
      for (const Tokens& s : x) chunk.insert(chunk.end(), s.begin() + past, s.begin() + past + n);
      tape.reset();
      const Tensor got = gpt.next_logits(tape, chunk.data(), n, pointers).value;
      past += n;
      for (Index b = 0; b < B; ++b) {
        INFO("sequence " << b << " position " << past - 1);
        const Floats want = full_logits(gpt, x[static_cast<std::size_t>(b)]);
        REQUIRE((Floats(got.data + b * V, got.data + (b + 1) * V) == row_of(want, past - 1)));
      }
    }
  });
}

TEST_CASE("generated tokens are those of full passes, within the context and beyond it", "[unit]") {
  for_all_models([](const Gpt& gpt) {
    for (const Index n : {1, 20, 36, 37, 38, 60}) {
      INFO("context " << n);
      const Tokens context = tokens(n, 8);
      const Stream stream(3, "sample", n);
      const Tokens want = by_full_passes(gpt, context, T + 8, {.temperature = 1.0}, stream);
      CHECK(generated(gpt, context, T + 8, {.temperature = 1.0}, stream) == want);
      const Threads guard(2);
      CHECK(generated(gpt, context, T + 8, {.temperature = 1.0}, stream) == want);
    }
  });
  const auto one_layer = model(Attention::qk_norm, false, 1);
  const Stream stream(3, "sample");
  CHECK(generated(*one_layer, {1}, T + 3, {}, stream) == by_full_passes(*one_layer, {1}, T + 3, {}, stream));
}

TEST_CASE("generating sees changed weights and ends when the sink says so", "[unit]") {
  const auto gpt = model(Attention::qk_norm, true);
  const Stream stream(3, "sample");
  const Tokens before = generated(*gpt, {1, 2}, 30, {}, stream);
  for (Param& p : gpt->params().list()) {
    if (!p.name.ends_with("attn.c_attn.weight")) continue;
    for (Index i = 0; i < p.size(); ++i) p.value()[i] *= -1.5f;
    p.changed();
  }
  const Tokens after = generated(*gpt, {1, 2}, 30, {}, stream);
  CHECK(after != before);
  CHECK(after == by_full_passes(*gpt, {1, 2}, 30, {}, stream));
  int calls = 0;
  generate(*gpt, Tokens{1, 2}, 30, {}, stream, [&](std::int32_t id) {
    CHECK(id == after[static_cast<std::size_t>(calls)]);
    return ++calls < 4;
  });
  CHECK(calls == 4);
  generate(*gpt, Tokens{1, 2}, 0, {}, stream, [&](std::int32_t) { return ++calls, true; });
  CHECK(calls == 4);
  CHECK_THROWS_AS(generate(*gpt, Tokens{}, 3, {}, stream, [](std::int32_t) { return true; }), std::logic_error);
}

TEST_CASE("continuations side by side are those of each alone, also when some end early", "[unit]") {
  const auto gpt = model(Attention::qk_norm, false);
  const Tokens context = tokens(5, 9);
  std::vector<Stream> streams;
  std::vector<Tokens> want, got(5);
  for (Index i = 0; i < 5; ++i) {
    streams.emplace_back(4u, "sample", i);
    want.push_back(generated(*gpt, context, i == 1 ? 3 : i == 4 ? 40 : 50, {}, streams.back()));
  }
  Continuations c(*gpt, context, {}, streams);
  for (bool begun = false; !c.ended(); begun = true) {
    if (begun) c.compute();
    c.draw([&](Index i, std::int32_t id) {
      Tokens& out = got[static_cast<std::size_t>(i)];
      out.push_back(id);
      return out.size() < want[static_cast<std::size_t>(i)].size();
    });
  }
  CHECK(got == want);
  CHECK(want[0] != want[2]);
}

TEST_CASE("logits that are not finite end the generation", "[unit]") {
  const auto gpt = model(Attention::standard, false);
  gpt->params().find("transformer.ln_f.weight")->value()[3] = INFINITY;
  CHECK_THROWS_AS(generated(*gpt, {1}, 3, {}, Stream(1, "sample")), Error);
}

TEST_CASE("a draw is the one that sorting all logits gives", "[unit]") {
  std::vector<Candidate> space;
  for (std::uint64_t round = 0; round < 40; ++round) {
    const Index n = round % 2 == 0 ? 65 : 300;
    const auto numbers = test::normals(n, round, 2.0);
    Floats logits(numbers.begin(), numbers.end());
    if (round % 3 == 0)
      for (float& z : logits) z = std::round(z);  // many equal ones, zeros of both signs
    for (const double temperature : {0.0, 0.1, 0.8, 3.0})
      for (const Index k : {0, 1, 2, 10, 64, 300, 1000})
        for (const double p : {0.0001, 0.5, 0.97, 1.0})
          for (std::uint64_t i = 0; i < 8; ++i) {
            const SampleOptions options = {.temperature = temperature, .top_k = k, .top_p = p};
            const double uniform = i == 0 ? 0.0 : i == 1 ? 1.0 - 0x1p-53 : Stream(round, "draw").uniform(i);
            REQUIRE(draw_token(logits.data(), n, options, uniform, space) == draw_by_sorting(logits, options, uniform));
          }
  }
}

TEST_CASE("a draw follows temperature and the restrictions", "[unit]") {
  std::vector<Candidate> space;
  const auto draw = [&space](const float* z, Index n, const SampleOptions& options, double uniform) {
    return draw_token(z, n, options, uniform, space);
  };
  const float logits[5] = {1.0f, 3.0f, 3.0f, -2.0f, 0.0f};
  CHECK(draw(logits, 5, {.temperature = 0.0}, 0.99) == 1);  // of equal ones the lowest
  for (int i = 0; i < 100; ++i) {
    const double u = i / 100.0;
    CHECK(draw(logits, 5, {.temperature = 1.0, .top_k = 1}, u) == 1);
    const auto two = draw(logits, 5, {.temperature = 1.0, .top_k = 2}, u);
    CHECK((two == 1 || two == 2));
    const auto nucleus = draw(logits, 5, {.temperature = 1.0, .top_p = 0.5}, u);
    CHECK((nucleus == 1 || nucleus == 2));
    CHECK(draw(logits, 5, {.temperature = 1.0, .top_k = 99}, u) == draw(logits, 5, {.temperature = 1.0}, u));
  }
  int count[5] = {};
  for (int i = 0; i < 10000; ++i) ++count[draw(logits, 5, {.temperature = 2.0}, (i + 0.5) / 10000.0)];
  double z = 0.0;
  for (const float l : logits) z += std::exp(static_cast<double>(l) / 2.0);
  for (int v = 0; v < 5; ++v)
    CHECK(std::abs(count[v] - 10000.0 * std::exp(static_cast<double>(logits[v]) / 2.0) / z) <= 2.0);
  const float bad[2] = {0.0f, NAN};
  CHECK_THROWS_AS(draw(bad, 2, {}, 0.5), Error);
}

}  // namespace qkgpt
