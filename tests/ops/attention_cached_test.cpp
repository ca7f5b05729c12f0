// Attention with kept keys and values against attention over the whole sequence: the same bits.
#include "ops/attention_case.h"

using namespace qkgpt;
using namespace qkgpt::test;

namespace {

using Floats = std::vector<float>;
using Chunks = std::vector<Index>;  // how many positions come at a time

class Cached {
 public:
  explicit Cached(const AttentionCase& a) : a_(a) {
    for (const Leaf& leaf : a.leaves()) params_.add(leaf.name, leaf.shape, false);
    params_.allocate(false);
    for (std::size_t l = 0; l < params_.list().size(); ++l) {
      const Leaf leaf = a.leaves()[l];
      for (Index i = 0; i < leaf.value.size(); ++i) params_.list()[l].value()[i] = static_cast<float>(leaf.value[i]);
    }
  }

  Floats whole() {
    tape_.reset();
    return values(attention(tape_, params_.list()[0].var, a_.spec(params_.list()), {}));
  }

  // y (B, T, C) put together from chunks; with `last_only` all rows but the last of every chunk are zero.
  Floats by_chunks(const Chunks& chunks, Index capacity, bool last_only = false) {
    const Index layer = 1;
    std::vector<KeyValueCache> caches(static_cast<std::size_t>(a_.B), KeyValueCache(layer + 1, a_.H, a_.d(), capacity));
    std::vector<KeyValueCache*> pointers;
    for (KeyValueCache& cache : caches) pointers.push_back(&cache);
    Floats y(static_cast<std::size_t>(a_.B * a_.T * a_.C));
    Index past = 0;
    for (const Index n : chunks) {
      tape_.reset();
      Var& qkv = tape_.make({a_.B, n, 3 * a_.C});
      for (Index b = 0; b < a_.B; ++b)
        std::copy_n(params_.list()[0].value() + (b * a_.T + past) * 3 * a_.C, n * 3 * a_.C,
                    qkv.value.data + b * n * 3 * a_.C);
      const Index queries = last_only ? 1 : n;
      const Floats part = values(attention_cached(tape_, qkv, a_.spec(params_.list()), layer, pointers, queries));
      past += n;
      for (KeyValueCache& cache : caches) cache.advance(n);
      for (Index b = 0; b < a_.B; ++b)
        std::copy_n(part.data() + b * queries * a_.C, queries * a_.C, y.data() + (b * a_.T + past - queries) * a_.C);
    }
    CHECK(past == a_.T);
    return y;
  }

 private:
  static Floats values(const Var& y) { return Floats(y.value.data, y.value.data + y.size()); }

  AttentionCase a_;
  Params params_;
  Arena arena_;
  Tape tape_{arena_, false};
};

Chunks ones(Index n) { return Chunks(static_cast<std::size_t>(n), 1); }

// A prompt, then single positions.
Chunks prompt_then_ones(Index prompt, Index n) {
  Chunks chunks = ones(n - prompt);
  chunks.insert(chunks.begin(), prompt);
  return chunks;
}

void check_chunks(const AttentionCase& a) {
  Cached cached(a);
  const Floats whole = cached.whole();
  CHECK((cached.by_chunks({a.T}, a.T) == whole));
  CHECK((cached.by_chunks(ones(a.T), a.T) == whole));
  CHECK((cached.by_chunks(prompt_then_ones(a.T / 3 + 1, a.T), a.T) == whole));
  CHECK((cached.by_chunks({a.T / 2, a.T - a.T / 2 - 1, 1}, a.T + 29) == whole));
}

}  // namespace

TEST_CASE("cached attention has the bits of attention for every norm and scale", "[unit]") {
  for (const QkNorm norm : all_norms)
    for (const LogitScale scale : all_scales)
      for (const bool gains : {false, true}) {
        INFO("norm " << static_cast<int>(norm) << " scale " << static_cast<int>(scale) << " gains " << gains);
        AttentionCase a;
        a.B = 2, a.T = 37, a.C = 48, a.H = 3, a.norm = norm, a.scale = scale;
        check_chunks(a.fill(1.0, gains));
      }
}

TEST_CASE("cached attention has the bits of attention at odd sizes and beyond a block of queries", "[unit]") {
  for (const Kind& kind : kinds) {
    INFO(kind.name);
    check_chunks(case_of(kind, 1, 3, 6, 2));
    check_chunks(case_of(kind, 3, 33, 34, 2));  // d = 17
    check_chunks(case_of(kind, 1, 130, 66, 1));
    check_chunks(case_of(kind, 1, 300, 4, 2));  // beyond the depth of a panel block
  }
}

TEST_CASE("cached attention computes only the last rows where only they are asked for", "[unit]") {
  for (const Kind& kind : kinds) {
    INFO(kind.name);
    const AttentionCase a = case_of(kind, 2, 60, 48, 3);
    Cached cached(a);
    const Floats whole = cached.whole(), last = cached.by_chunks({13, 46, 1}, a.T, true);
    for (Index b = 0; b < a.B; ++b)
      for (Index i = 0; i < a.T; ++i) {
        const bool asked = i == 12 || i == 58 || i == 59;
        for (Index c = 0; c < a.C; ++c) {
          const auto at = static_cast<std::size_t>((b * a.T + i) * a.C + c);
          REQUIRE(last[at] == (asked ? whole[at] : 0.0f));
        }
      }
  }
}

TEST_CASE("cached attention gives the same bits for 1 2 and 3 threads", "[unit]") {
  Cached cached(case_of(kinds[2], 4, 100, 36, 3));
  const auto with = [&](int threads) {
    const Threads guard(threads);
    return cached.by_chunks({90, 9, 1}, 100);
  };
  const Floats one = with(1);
  for (const int threads : {2, 3}) CHECK((with(threads) == one));
}

TEST_CASE("cached attention refuses what does not fit its caches", "[unit]") {
  const AttentionCase a = case_of(kinds[0], 2, 5, 8, 2);
  Cached cached(a);
  CHECK_THROWS_AS(cached.by_chunks({5}, 4), std::logic_error);
  KeyValueCache one(1, 2, 4, 8), other = one;
  other.advance(1);
  Arena arena;
  Tape tape(arena, false), recording(arena, true);
  KeyValueCache* uneven[] = {&one, &other};
  KeyValueCache* even[] = {&one, &one};
  const AttentionSpec spec = {.n_head = 2};
  CHECK_THROWS_AS(attention_cached(tape, tape.make({2, 1, 24}), spec, 0, uneven, 1), std::logic_error);
  CHECK_THROWS_AS(attention_cached(tape, tape.make({1, 1, 24}), spec, 0, even, 1), std::logic_error);
  CHECK_THROWS_AS(attention_cached(recording, tape.make({2, 1, 24}), spec, 0, even, 1), std::logic_error);
  CHECK_THROWS_AS(one.advance(9), std::logic_error);
}
