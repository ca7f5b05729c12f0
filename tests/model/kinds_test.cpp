// What tells the kinds of attention apart in a whole model: which changes of the weights leave it as it is.
#include <cmath>

#include "gradient_check.h"
#include "model/gpt.h"
#include "train/adamw.h"

using namespace qkgpt;
using namespace qkgpt::test;

namespace {

constexpr Index B = 3, T = 12, C = 24, H = 3, d = 8, V = 11;

Config config_of(Attention kind) {
  Config c;
  c.n_layer = 2, c.n_head = H, c.n_embd = C, c.block_size = T, c.batch_size = B;
  c.attention = kind, c.softcap = 1.5, c.qk_scale_init = 2.5;
  c.qk_norm_eps = 1e-30;  // so that the statements are exact
  return c;
}

// A model far from its start, with gains, g and a of their own.
struct Model {
  Gpt gpt;
  Arena arena;
  Tape tape{arena, true};
  Array<double> logits;

  explicit Model(Attention kind) : gpt(config_of(kind), V) {
    gpt.allocate(true);
    std::uint64_t seed = 1;
    for (Param& p : gpt.params().list()) {
      const bool matrix = p.shape.rank() == 2;
      const Array<double> x = matrix ? normals(p.size(), seed++, 0.3) : uniforms(p.size(), seed++, 0.5, 1.5);
      for (Index i = 0; i < p.size(); ++i) p.value()[i] = static_cast<float>(x[i]);
    }
  }

  Param& param(const std::string& name) {
    Param* p = gpt.params().find(name);
    REQUIRE(p);
    return *p;
  }

  // Logits, loss and gradients.
  double run() {
    const auto x = integers(B * T, 1, V), y = integers(B * T, 2, V);
    for (Param& p : gpt.params().list()) p.changed();
    tape.reset();
    gpt.params().start_gradients();
    Var& z = gpt.logits(tape, x.data(), B, T, {});
    logits = Array<double>(std::vector<float>(z.value.data, z.value.data + z.size()));
    Var& loss = cross_entropy(tape, z, y.data());
    tape.backward(loss);
    return static_cast<double>(loss.value.data[0]);
  }

  Array<double> gradient(const std::string& name) {
    const Param& p = param(name);
    return Array<double>(std::vector<float>(p.var.grad, p.var.grad + p.size()));
  }
};

const std::string layer = "transformer.h.1.attn.", c_attn = layer + "c_attn.weight";

// Cosine of weights and their gradient over `count` numbers from `begin` on.
double cosine(const Param& p, Index begin, Index count) {
  double wg = 0.0, ww = 0.0, gg = 0.0;
  for (Index i = begin; i < begin + count; ++i) {
    const auto w = static_cast<double>(p.value()[i]), g = static_cast<double>(p.var.grad[i]);
    wg += w * g, ww += w * w, gg += g * g;
  }
  return std::abs(wg) / std::sqrt(ww * gg);
}

}  // namespace

TEST_CASE("where heads are normalised the gradient of their weights is across them", "[gradient]") {
  for (const AttentionRow& kind : attention_table) {
    INFO(kind.name);
    Model model(kind.kind);
    model.run();
    const Param& w = model.param(c_attn);
    for (const Index part : {0, 1}) {  // of q and k
      double most = 0.0;
      for (Index h = 0; h < H; ++h) most = std::max(most, cosine(w, (part * C + h * d) * C, d * C));
      const double whole = cosine(w, part * C * C, C * C);
      CHECK((kind.norm == QkNorm::none) == (whole > 1e-4));
      CHECK((kind.norm == QkNorm::none || kind.norm == QkNorm::rms_full) == (most > 1e-4));
      if (most <= 1e-4) CHECK(most < 1e-5);
      if (whole <= 1e-4) CHECK(whole < 1e-5);
    }
  }
}

TEST_CASE("where queries are normalised larger weights change nothing and have smaller gradients", "[gradient]") {
  for (const AttentionRow& kind : attention_table) {
    INFO(kind.name);
    Model model(kind.kind);
    const double loss = model.run();
    const Array<double> logits = model.logits, wanted = model.gradient(c_attn);
    Param& w = model.param(c_attn);
    for (Index i = 0; i < C * C; ++i) w.value()[i] *= 7.0f;  // W_q
    const double larger = model.run();
    if (kind.norm == QkNorm::none) {
      CHECK(difference(model.logits, logits) > 1e-2);
      continue;
    }
    CHECK(std::abs(larger - loss) < 1e-5);
    CHECK(difference(model.logits, logits) < 1e-5 * largest(logits));
    Array<double> got = model.gradient(c_attn);
    for (Index i = 0; i < C * C; ++i) got[i] *= 7.0;
    CHECK(difference(got, wanted) < 1e-5 * largest(wanted));
  }
}

TEST_CASE("the order of heads does not matter to a model", "[unit]") {
  for (const AttentionRow& kind : attention_table) {
    INFO(kind.name);
    Model model(kind.kind), other(kind.kind);
    const auto from = [](Index c) { return (c + d) % C; };  // every channel comes from the next head
    const auto move = [&](const std::string& name, auto place) {
      const Param& p = model.param(layer + name);
      Param& q = other.param(layer + name);
      for (Index i = 0; i < p.size(); ++i) q.value()[i] = p.value()[place(i)];
    };
    move("c_attn.weight", [&](Index i) { return (i / C / C * C + from(i / C % C)) * C + i % C; });
    other.run(), model.run();
    CHECK(difference(model.logits, other.logits) > 1e-2);  // their outputs still go where they went
    move("c_proj.weight", [&](Index i) { return i / C * C + from(i % C); });
    if (kind.norm == QkNorm::rms_full) {
      other.run();
      CHECK(difference(model.logits, other.logits) > 1e-2);  // these gains belong to the channels of heads
      for (const char* name : {"q_norm.weight", "k_norm.weight"}) move(name, from);
    }
    other.run();
    CHECK(difference(model.logits, other.logits) < 1e-5 * largest(model.logits));
  }
}

TEST_CASE("queries of zero leave a first update finite", "[unit]") {
  // pytorch/pytorch#184575: the gradient of a normalised zero vector is 1 / eps as large
  for (const AttentionRow& kind : attention_table) {
    INFO(kind.name);
    Config c = config_of(kind.kind);
    c.qk_norm_eps = 1e-6;
    Gpt gpt(c, V);
    gpt.allocate(true), gpt.initialise();
    for (Param& p : gpt.params().list())
      if (p.name.ends_with("c_attn.weight")) std::fill_n(p.value(), C * C, 0.0f);
    Arena arena;
    Tape tape(arena, true);
    const auto x = integers(B * T, 1, V), y = integers(B * T, 2, V);
    for (Index step = 0; step < 2; ++step) {
      tape.reset();
      gpt.params().start_gradients();
      Var& loss = gpt.loss(tape, x.data(), y.data(), B, T, {});
      CHECK(std::abs(static_cast<double>(loss.value.data[0]) - std::log(static_cast<double>(V))) < 0.2);
      tape.backward(loss);
      std::vector<double> partial;
      const double norm = gradient_norm(gpt.params(), partial);
      CHECK(std::isfinite(norm));
      if (step == 0 && kind.norm == QkNorm::l2) CHECK(norm > 50.0);
      adamw(gpt.params(), c, step, 1e-3, clip_factor(norm, c.grad_clip));
    }
    for (const Param& p : gpt.params().list())
      for (Index i = 0; i < p.size(); ++i) REQUIRE(std::isfinite(p.value()[i]));
  }
}

TEST_CASE("without gradients only matrices and embeddings change", "[unit]") {
  // ServiceNow/Fast-LLM#542: gains of norms were decayed after a refactoring
  for (const AttentionRow& kind : attention_table) {
    INFO(kind.name);
    Model model(kind.kind), before(kind.kind);
    model.gpt.params().start_gradients();
    Config c = config_of(kind.kind);
    for (Param& p : model.gpt.params().list()) std::fill_n(p.var.grad, p.size(), 0.0f);
    adamw(model.gpt.params(), c, 0, 0.1, 1.0);
    for (const Param& p : model.gpt.params().list()) {
      INFO(p.name);
      const bool same = std::equal(p.value(), p.value() + p.size(), before.param(p.name).value());
      CHECK(same == (p.shape.rank() == 1));
    }
  }
}

TEST_CASE("qk_scale_lr_mult is for g alone", "[unit]") {
  for (const AttentionRow& kind : attention_table) {
    Config c = config_of(kind.kind);
    c.qk_scale_lr_mult = 10.0;
    const Gpt gpt(c, V);
    for (const Param& p : gpt.params().list()) {
      INFO(kind.name << " " << p.name);
      CHECK(p.lr_mult == (p.name.ends_with(".qk_scale") ? 10.0 : 1.0));
    }
  }
}
