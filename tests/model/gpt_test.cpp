#include "model/gpt.h"

#include <cmath>

#include "catch.h"

namespace qkgpt {
namespace {

Config with(Attention attention) {
  Config c;
  c.attention = attention;
  return c;
}

double standard_deviation(const Param& p) {
  double sum = 0.0;
  for (Index i = 0; i < p.size(); ++i) sum += static_cast<double>(p.value()[i]) * static_cast<double>(p.value()[i]);
  return std::sqrt(sum / static_cast<double>(p.size()));
}

}  // namespace

TEST_CASE("the default model has the size of nanoGPT's CPU run", "[unit]") {
  Gpt gpt(Config{}, 65);
  CHECK(gpt.params().count() == 804096);
  CHECK(gpt.count_without_positions() == 795904);
  CHECK(gpt.params().tensors(true) == 18);
  CHECK(gpt.params().count(true) == 802944);
  CHECK(gpt.params().tensors(false) == 9);
  CHECK(gpt.params().count(false) == 1152);
  CHECK(flops_per_token(gpt.config(), gpt.count_without_positions()) == 5168640.0);
  Config big;
  big.n_layer = 6, big.n_head = 6, big.n_embd = 384, big.block_size = 256;
  Gpt gpu(big, 65);
  CHECK(gpu.params().count() == 10745088);
  CHECK(gpu.count_without_positions() == 10646784);
  CHECK(gpu.params().count(true) == 10740096);
  CHECK(gpu.params().count(false) == 4992);
}

TEST_CASE("each attention kind adds the parameters that it should and never decays them", "[unit]") {
  const struct {
    Attention kind;
    Index more;
    const char* name;
    Shape shape;
  } wanted[] = {{Attention::standard, 0, "", {}},
                {Attention::standard_temperature, 4, "temperature", {1}},
                {Attention::softcap, 0, "", {}},
                {Attention::qk_norm, 4, "qk_scale", {1}},
                {Attention::qk_norm_fixed, 0, "", {}},
                {Attention::qk_rmsnorm, 256, "k_norm.weight", {32}},
                {Attention::qk_rmsnorm_full, 1024, "q_norm.weight", {128}},
                {Attention::qk_layernorm, 256, "q_norm.weight", {32}}};
  CHECK(std::size(wanted) == attention_table.size());
  for (const auto& w : wanted) {
    Gpt gpt(with(w.kind), 65);
    INFO(row(w.kind).name);
    CHECK(gpt.params().count() == 804096 + w.more);
    CHECK(gpt.params().count(true) == 802944);
    if (w.more == 0) continue;
    const Param* p = gpt.params().find(std::string("transformer.h.3.attn.") + w.name);
    REQUIRE(p);
    CHECK(p->shape == w.shape);
    CHECK_FALSE(is_shared(*p));
  }
}

TEST_CASE("weights start as nanoGPT's do", "[unit]") {
  Gpt gpt(with(Attention::qk_norm), 65);
  gpt.allocate(false);
  gpt.initialise();
  for (const Param& p : gpt.params().list()) {
    INFO(p.name);
    if (p.name.ends_with("qk_scale")) {
      CHECK(p.size() == 1);
      CHECK_THAT(static_cast<double>(p.value()[0]), test::WithinAbs(std::log2(64.0 * 64.0 - 64.0), 1e-5));
    } else if (p.shape.rank() == 1) {
      for (Index i = 0; i < p.size(); ++i) REQUIRE(p.value()[i] == 1.0f);
    } else {
      const double expected = p.name.ends_with("c_proj.weight") ? 0.02 / std::sqrt(8.0) : 0.02;
      const double five_sigma = 5.0 / std::sqrt(2.0 * static_cast<double>(p.size()));
      CHECK_THAT(standard_deviation(p) / expected, test::WithinAbs(1.0, five_sigma));
    }
  }
}

TEST_CASE("shared tensors start equal in all attention kinds", "[unit]") {
  Gpt a(with(Attention::standard), 65);
  a.allocate(false), a.initialise();
  for (const AttentionRow& kind : attention_table) {
    Gpt b(with(kind.kind), 65);
    b.allocate(false), b.initialise();
    INFO(kind.name);
    int compared = 0;
    for (const Param& p : b.params().list()) {
      if (!is_shared(p)) continue;
      const Param* other = a.params().find(p.name);
      REQUIRE(other);
      REQUIRE(std::equal(p.value(), p.value() + p.size(), other->value()));
      ++compared;
    }
    CHECK(compared == 27);
  }
}

TEST_CASE("an untrained model knows nothing and its loss is near ln V", "[unit]") {
  for (const AttentionRow& kind : attention_table) {
    INFO(kind.name);
    Gpt gpt(with(kind.kind), 65);
    gpt.allocate(false);
    gpt.initialise();
    std::vector<std::int32_t> x(2 * 64), y(2 * 64);
    for (std::size_t i = 0; i < x.size(); ++i)
      x[i] = static_cast<std::int32_t>(i * 7 % 65), y[i] = static_cast<std::int32_t>(i * 11 % 65);
    Arena arena;
    Tape tape(arena, false);
    CHECK_THAT(static_cast<double>(gpt.loss(tape, x.data(), y.data(), 2, 64, {}).value.data[0]),
               test::WithinAbs(std::log(65.0), 0.1));
  }
}

TEST_CASE("a later token never changes an earlier logit", "[unit]") {
  for (const AttentionRow& kind : attention_table) {
    INFO(kind.name);
    Config c = with(kind.kind);
    c.n_layer = 2, c.n_embd = 24, c.n_head = 2, c.block_size = 20;
    Gpt gpt(c, 11);
    gpt.allocate(false);
    gpt.initialise();
    std::vector<std::int32_t> tokens(20, 3);
    Arena arena;
    Tape tape(arena, false);
    const float* p = gpt.logits(tape, tokens.data(), 1, 20, {}).value.data;
    const std::vector<float> before(p, p + 20 * 11);
    tokens[13] = 5;
    tape.reset();
    const float* q = gpt.logits(tape, tokens.data(), 1, 20, {}).value.data;
    CHECK(std::equal(before.begin(), before.begin() + 13 * 11, q));
    CHECK_FALSE(std::equal(before.begin() + 13 * 11, before.end(), q + 13 * 11));
  }
}

TEST_CASE("the memory estimate is near what a step takes", "[unit]") {
  Config c;
  c.n_layer = 3, c.n_embd = 96, c.n_head = 3, c.block_size = 48, c.batch_size = 10;
  for (const double p : {0.0, 0.2}) {
    c.dropout = p;
    Gpt gpt(c, 65);
    gpt.allocate(true);
    gpt.initialise();
    Arena arena;
    Tape tape(arena, true);
    std::vector<std::int32_t> x(480, 1);
    gpt.params().start_gradients();
    tape.backward(gpt.loss(tape, x.data(), x.data(), 10, 48, {p, 1, 0, 0}));
    double held = static_cast<double>(arena.peak()) + 16.0 * static_cast<double>(gpt.params().count());
    for (const Param& q : gpt.params().list())
      held += 4.0 * static_cast<double>(q.panels.size() + q.panels_transposed.size());
    CHECK_THAT(memory_estimate(c, 65, true) / held, test::WithinAbs(1.0, 0.15));
  }
}

}  // namespace qkgpt
