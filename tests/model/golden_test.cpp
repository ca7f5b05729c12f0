// The whole model against PyTorch in float64: numbers written by scripts/reference.py, an implementation of its
// own. Logits, loss, every gradient, gradient norms, and every weight after five AdamW updates.
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "catch.h"
#include "model/gpt.h"
#include "train/adamw.h"

namespace qkgpt {
namespace {

using Json = nlohmann::json;
using Numbers = std::vector<double>;

Json read(const std::string& name) {
  std::ifstream file(std::string(TEST_DATA_DIR) + "/golden/" + name);
  return Json::parse(file);
}

Config config_of(const Json& j) {
  const Json& c = j["config"];
  Config out;
  out.n_layer = c["n_layer"].get<Index>();
  out.n_head = c["n_head"].get<Index>();
  out.n_embd = c["n_embd"].get<Index>();
  out.block_size = c["block_size"].get<Index>();
  out.batch_size = c["batch_size"].get<Index>();
  out.bias = c["bias"].get<bool>();
  out.qk_scale_init = c["qk_scale_init"].get<double>();
  out.softcap = c["softcap"].get<double>();
  out.qk_norm_eps = c["qk_norm_eps"].get<double>();
  for (const AttentionRow& r : attention_table)
    if (c["attention"].get<std::string>() == r.name) out.attention = r.kind;
  out.weight_decay = c["weight_decay"].get<double>();
  out.beta1 = c["beta1"].get<double>();
  out.beta2 = c["beta2"].get<double>();
  out.grad_clip = c["grad_clip"].get<double>();
  return out;
}

std::vector<std::int32_t> ids(const Json& rows) {
  std::vector<std::int32_t> out;
  for (const Json& r : rows)
    for (const Json& id : r) out.push_back(id.get<std::int32_t>());
  return out;
}

// Largest |a - b| relative to the largest |b|.
double difference(const float* a, const Numbers& b, std::size_t begin, std::size_t end) {
  double worst = 0.0, scale = 1e-30;
  for (std::size_t i = begin; i < end; ++i) {
    worst = std::max(worst, std::abs(static_cast<double>(a[i]) - b[i]));
    scale = std::max(scale, std::abs(b[i]));
  }
  return worst / scale;
}

void compare(const std::string& file) {
  INFO(file);
  const Json j = read(file);
  const Config config = config_of(j);
  Gpt gpt(config, j["vocab_size"].get<Index>());
  gpt.allocate(true);
  CHECK(gpt.params().list().size() == j["params"].size());
  for (Param& p : gpt.params().list()) {
    INFO(p.name);
    const auto values = j["params"].at(p.name).get<Numbers>();
    std::vector<Index> shape;
    for (int i = 0; i < p.shape.rank(); ++i) shape.push_back(p.shape[i]);
    REQUIRE(j["shapes"].at(p.name).get<std::vector<Index>>() == shape);
    for (std::size_t i = 0; i < values.size(); ++i) p.value()[i] = static_cast<float>(values[i] / 128.0);
    p.changed();
  }
  const auto idx = ids(j["idx"]), targets = ids(j["targets"]);
  const auto rates = j["learning_rates"].get<Numbers>(), norms = j["grad_norms"].get<Numbers>();
  const auto losses = j["losses"].get<Numbers>();
  Arena arena;
  Tape tape(arena, true);
  for (std::size_t step = 0; step < rates.size(); ++step) {
    INFO("update " << step);
    tape.reset();
    gpt.params().start_gradients();
    Var& logits = gpt.logits(tape, idx.data(), config.batch_size, config.block_size, {});
    if (step == 0) {
      const auto expected = j["logits"].get<Numbers>();
      CHECK(difference(logits.value.data, expected, 0, expected.size()) < 1e-5);
    }
    Var& loss = cross_entropy(tape, logits, targets.data());
    CHECK_THAT(static_cast<double>(loss.value.data[0]), test::WithinAbs(losses[step], 5e-6));
    tape.backward(loss);
    if (step == 0)
      for (const Param& p : gpt.params().list()) {
        INFO("gradient of " << p.name);
        const auto expected = j["grads"].at(p.name).get<Numbers>();
        // the gradient of g or a is one sum of many terms that cancel: its own size is no measure of the rounding
        CHECK(difference(p.var.grad, expected, 0, expected.size()) < (p.size() == 1 ? 1e-4 : 1e-5));
      }
    std::vector<double> partial;
    const double norm = gradient_norm(gpt.params(), partial);
    CHECK_THAT(norm, test::WithinRel(norms[step], 2e-5));
    adamw(gpt.params(), config, static_cast<Index>(step), rates[step], clip_factor(norm, config.grad_clip));
  }
  for (const Param& p : gpt.params().list()) {
    INFO(p.name << " after the updates");
    const auto expected = j["updated"].at(p.name).get<Numbers>();
    const std::size_t n = expected.size();
    const AttentionRow& kind = row(config.attention);
    if (p.name.ends_with("c_attn.bias") && kind.norm == QkNorm::none && !kind.cap) {
      // Adam makes steps of full size from the rounding noise of the key part: compare the others.
      CHECK(difference(p.value(), expected, 0, n / 3) < 1e-5);
      CHECK(difference(p.value(), expected, 2 * n / 3, n) < 1e-5);
    } else {
      CHECK(difference(p.value(), expected, 0, n) < 1e-5);
    }
  }
}

}  // namespace

TEST_CASE("the model of every attention kind agrees with PyTorch in float64", "[gradient]") {
  for (const AttentionRow& kind : attention_table) compare(std::string("gpt_") + kind.name + "_nobias.json");
  compare("gpt_standard_bias.json");
  compare("gpt_qk_norm_bias.json");
}

}  // namespace qkgpt
