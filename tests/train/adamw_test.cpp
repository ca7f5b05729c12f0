#include "train/adamw.h"

#include "gradient_check.h"

using namespace qkgpt;
using namespace qkgpt::test;

namespace {

double norm_of(const Params& params) {
  std::vector<double> partial;
  return gradient_norm(params, partial);
}

// A decayed matrix, one that is not, and a scale with its own learning rate.
struct Model {
  Params params;
  explicit Model(Index n = 37) {
    params.add("weight", {n, 3}, true);
    params.add("gain", {n, 2}, false);  // two dimensions, yet not decayed
    params.add("qk_scale", {1}, false).lr_mult = 10.0;
    params.allocate(true);
    fill(1, [](Param& p) { return p.value(); });
  }
  template <class Where>
  void fill(std::uint64_t seed, Where where) {
    for (Param& p : params.list()) {
      const Array<double> x = normals(p.size(), seed++);
      for (Index i = 0; i < p.size(); ++i) where(p)[i] = static_cast<float>(x[i]);
    }
  }
  void random_gradients(std::uint64_t seed) {
    fill(seed, [](Param& p) { return p.var.grad; });
  }
};

// AdamW as its paper writes it, in double.
struct Reference {
  std::vector<double> w, m, v;
  void update(const Param& p, const Config& c, Index step, double lr, double clip) {
    const double t = static_cast<double>(step + 1), rate = lr * p.lr_mult;
    for (std::size_t i = 0; i < w.size(); ++i) {
      const double g = clip * static_cast<double>(p.var.grad[i]);
      m[i] = c.beta1 * m[i] + (1.0 - c.beta1) * g;
      v[i] = c.beta2 * v[i] + (1.0 - c.beta2) * g * g;
      const double m_hat = m[i] / (1.0 - std::pow(c.beta1, t)), v_hat = v[i] / (1.0 - std::pow(c.beta2, t));
      w[i] -= rate * m_hat / (std::sqrt(v_hat) + 1e-8) + (p.decay ? rate * c.weight_decay * w[i] : 0.0);
    }
  }
};

std::vector<Reference> start(const Model& model) {
  std::vector<Reference> all;
  for (const Param& p : model.params.list()) {
    const auto n = static_cast<std::size_t>(p.size());
    all.push_back(
        {std::vector<double>(p.value(), p.value() + p.size()), std::vector<double>(n), std::vector<double>(n)});
  }
  return all;
}

// The largest distance of a weight from the reference.
double distance(const Model& model, const std::vector<Reference>& reference) {
  double worst = 0.0;
  for (std::size_t l = 0; l < reference.size(); ++l)
    for (std::size_t i = 0; const double w : reference[l].w)
      worst = std::max(worst, std::abs(w - static_cast<double>(model.params.list()[l].value()[i++])));
  return worst;
}

}  // namespace

TEST_CASE("adamw agrees with its formula over several updates", "[unit]") {
  Config config;
  config.beta2 = 0.95;
  for (const double clip : {1.0, 0.3}) {
    Model model;
    std::vector<Reference> reference = start(model);
    for (Index step = 0; step < 8; ++step) {
      model.random_gradients(100 + 3 * static_cast<std::uint64_t>(step));
      const double lr = 0.01 / static_cast<double>(step + 1);
      for (std::size_t l = 0; l < reference.size(); ++l)
        reference[l].update(model.params.list()[l], config, step, lr, clip);
      adamw(model.params, config, step, lr, clip);
    }
    CHECK(distance(model, reference) < 2e-6);
    CHECK(distance(model, start(Model())) > 0.01);
  }
}

TEST_CASE("adamw adds epsilon outside the root", "[unit]") {
  // gradients near 1e-8, where epsilon halves the step; inside the root it would divide it by 1e4
  Config config;
  Model model;
  std::vector<Reference> reference = start(model);
  for (Index step = 0; step < 3; ++step) {
    model.random_gradients(50);
    for (Param& p : model.params.list())
      for (Index i = 0; i < p.size(); ++i) p.var.grad[i] *= 1e-8f;
    for (std::size_t l = 0; l < reference.size(); ++l)
      reference[l].update(model.params.list()[l], config, step, 0.1, 1.0);
    adamw(model.params, config, step, 0.1, 1.0);
  }
  CHECK(distance(model, reference) < 2e-5);
}

TEST_CASE("the first update moves every weight by the learning rate", "[unit]") {
  Config config;
  config.weight_decay = 0.0;
  Model model;
  const std::vector<Reference> before = start(model);
  model.random_gradients(9);
  adamw(model.params, config, 0, 0.01, 1.0);
  for (std::size_t l = 0; l < before.size(); ++l) {
    const Param& p = model.params.list()[l];
    for (Index i = 0; i < p.size(); ++i) {
      const double moved = before[l].w[static_cast<std::size_t>(i)] - static_cast<double>(p.value()[i]);
      REQUIRE(std::abs(moved - std::copysign(0.01 * p.lr_mult, static_cast<double>(p.var.grad[i]))) < 1e-6);
    }
  }
}

TEST_CASE("N7 with zero gradients only decayed tensors change and by the decay alone", "[unit]") {
  Config config;  // weight_decay 0.1
  Model model;
  const std::vector<Reference> before = start(model);
  for (Param& p : model.params.list()) std::fill_n(p.var.grad, p.size(), 0.0f);
  adamw(model.params, config, 0, 0.1, 1.0);
  for (std::size_t l = 0; l < before.size(); ++l) {
    const Param& p = model.params.list()[l];
    for (Index i = 0; i < p.size(); ++i) {
      const double was = before[l].w[static_cast<std::size_t>(i)], now = static_cast<double>(p.value()[i]);
      if (p.decay)
        REQUIRE(std::abs(now - 0.99 * was) <= 0x1p-23 * std::abs(was));
      else
        REQUIRE(now == was);
    }
  }
}

TEST_CASE("adamw marks rearranged weights as old", "[unit]") {
  Model model;
  for (Param& p : model.params.list()) p.panels_valid = p.panels_transposed_valid = true;
  model.random_gradients(9);
  adamw(model.params, Config(), 0, 0.01, 1.0);
  for (const Param& p : model.params.list()) CHECK_FALSE((p.panels_valid || p.panels_transposed_valid));
}

TEST_CASE("gradient_norm is the root of the sum of all squares", "[unit]") {
  for (const Index n : {1, 37, 5000}) {
    Model model(n);
    model.random_gradients(9);
    double sum = 0.0;
    for (const Param& p : model.params.list())
      for (Index i = 0; i < p.size(); ++i) sum += std::pow(static_cast<double>(p.var.grad[i]), 2);
    CHECK(std::abs(norm_of(model.params) - std::sqrt(sum)) <= 1e-12 * std::sqrt(sum));
  }
  Model model;
  for (Param& p : model.params.list()) std::fill_n(p.var.grad, p.size(), 1e30f);  // squares overflow float32
  CHECK(std::abs(norm_of(model.params) / (1e30 * std::sqrt(186.0)) - 1.0) < 1e-6);
  model.params.list()[1].var.grad[5] = NAN;
  CHECK(std::isnan(norm_of(model.params)));
}

TEST_CASE("clip_factor brings a large norm down and leaves a small one", "[unit]") {
  CHECK(clip_factor(4.0, 1.0) == 0.25);
  CHECK(clip_factor(1.0, 1.0) == 1.0);
  CHECK(clip_factor(0.5, 1.0) == 1.0);
  CHECK(clip_factor(4.0, 0.0) == 1.0);  // off
}

TEST_CASE("adamw and gradient_norm give the same bits with any number of threads", "[unit]") {
  const auto with = [](int threads) {
    const Threads guard(threads);
    Model model(100000);
    double norm = 0.0;
    for (Index step = 0; step < 2; ++step) {
      model.random_gradients(9 + 3 * static_cast<std::uint64_t>(step));
      norm = norm_of(model.params);
      adamw(model.params, Config(), step, 0.01, 1.0 / norm);
    }
    Param& w = model.params.list()[0];
    std::vector<float> all(w.value(), w.value() + w.size());
    all.push_back(static_cast<float>(norm));
    return std::pair(norm, all);
  };
  const auto one = with(1);
  for (const int threads : {2, 3, 7}) CHECK((with(threads) == one));
}
