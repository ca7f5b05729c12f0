// What an update costs, counted instead of timed: memory taken from the heap, multiply-adds of the matrix kernels.
#include "train/updates.h"

#include <atomic>
#include <cstdlib>
#include <new>

#include "gradient_check.h"
#include "kernels/gemm.h"

namespace {

std::atomic<long> allocations = 0;

void* counted(std::size_t size) {
  ++allocations;
  if (void* p = std::malloc(size)) return p;
  throw std::bad_alloc();
}

}  // namespace

void* operator new(std::size_t size) { return counted(size); }
void* operator new[](std::size_t size) { return counted(size); }
void* operator new(std::size_t size, const std::nothrow_t&) noexcept { return ++allocations, std::malloc(size); }
void* operator new[](std::size_t size, const std::nothrow_t&) noexcept { return ++allocations, std::malloc(size); }
void operator delete(void* p) noexcept { std::free(p); }
void operator delete[](void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }
void operator delete[](void* p, std::size_t) noexcept { std::free(p); }

using namespace qkgpt;
using namespace qkgpt::test;

namespace {

std::string text() {
  std::string s;
  for (const std::int32_t i : integers(4000, 1, 65)) s += static_cast<char>(' ' + i);
  return s;
}

Gpt& ready(Gpt& gpt) {
  gpt.allocate(true);
  gpt.initialise();
  return gpt;
}

struct Run {
  Text corpus = parse_text(text(), "text");
  Split train = train_split(corpus, 0.0);
  Gpt gpt;
  Arena arena;
  Updates updates;
  explicit Run(const Config& config) : gpt(config, corpus.tokenizer.size()), updates(ready(gpt), train, arena) {}
};

Config config(Attention kind, double dropout) {
  Config c;
  c.n_layer = 2, c.n_head = 2, c.n_embd = 64, c.block_size = 64, c.batch_size = 6;
  c.attention = kind, c.dropout = dropout, c.bias = dropout > 0.0, c.gradient_accumulation_steps = 2;
  return c;
}

Index vectors(Index n) { return (n + lanes - 1) / lanes * lanes; }

}  // namespace

TEST_CASE("after the second update nothing is allocated", "[unit]") {
  for (const AttentionRow& kind : attention_table)
    for (const double dropout : {0.0, 0.2})
      for (const int threads : {1, 2}) {
        const Threads guard(threads);
        Run run(config(kind.kind, dropout));
        run.updates.make(0);  // the first takes the memory, the second joins its blocks
        run.updates.make(1);
        const long before = allocations;
        const Index arena = run.arena.allocations();
        for (const Index step : {2, 3, 4}) run.updates.make(step);
        const long taken = allocations - before;  // now: Catch's macros allocate
        INFO(kind.name << " dropout " << dropout << " threads " << threads);
        CHECK(taken == 0);
        CHECK(run.arena.allocations() == arena);
      }
}

TEST_CASE("an update multiplies and adds no more than the products of the model need", "[unit]") {
  for (const AttentionRow& kind : attention_table) {
    const Config c = config(kind.kind, 0.0);
    Run run(c);
    run.updates.make(0);
    const MultiplyAdds count;
    run.updates.make(1);
    const Index done = count.counted();

    const Index rows = 2 * c.batch_size * c.block_size, C = c.n_embd, T = c.block_size, d = C / c.n_head;
    Index linear = 0;
    for (int layer = 0; layer < c.n_layer + 1; ++layer)
      for (const auto& [out, in] : {std::pair{3 * C, C}, {C, C}, {4 * C, C}, {C, 4 * C}, {Index{65}, C}}) {
        if ((layer == c.n_layer) != (out == 65)) continue;
        linear += rows * (in * vectors(out) + 2 * out * vectors(in));  // columns are padded to whole vectors
      }
    // scores, P v; again scores, dP, dq, dk, dv: seven products of T (T + 1) / 2 pairs of d numbers
    const Index triangle = 7 * c.n_layer * (rows / T) * c.n_head * T * (T + 1) / 2 * d;
    INFO(kind.name << " linear " << linear << " triangle " << triangle);
    CHECK(done >= linear + triangle);
    CHECK(done <= linear + triangle * 13 / 10);  // strips of 12 rows and panels of 16 or 32 columns round it up
  }
}
