// Numbers of two independent implementations in double precision, one with forward-mode dual numbers, one with
// reverse-mode differentiation (tests/golden/attention.json, which explains itself).
#include <fstream>
#include <nlohmann/json.hpp>

#include "ops/attention_case.h"

using namespace qkgpt;
using namespace qkgpt::test;
using nlohmann::json;

namespace {

// Numbers of an array of arrays of ..., in order.
Array<double> flat(const json& j) {
  std::vector<double> all;
  const auto walk = [&](const auto& self, const json& node) -> void {
    if (node.is_number())
      all.push_back(node.get<double>());
    else
      for (const json& child : node) self(self, child);
  };
  walk(walk, j);
  return Array<double>(all);
}

struct Golden {
  AttentionCase input;
  Array<double> weights;
  json wanted;
};

Golden golden(const Kind& kind) {
  std::ifstream file(TEST_DATA_DIR "/golden/attention.json");
  REQUIRE(file);
  const json all = json::parse(file), in = all.at("inputs"), want = all.at(kind.name);
  Golden g{case_of(kind, 1, in.at("T").get<Index>(), in.at("C").get<Index>(), want.at("n_head").get<Index>()),
           flat(in.at("R")), want};
  AttentionCase& a = g.input;
  const Array<double> parts[] = {flat(in.at("Q")), flat(in.at("K")), flat(in.at("V"))};
  for (Index row = 0; row < a.T; ++row)
    for (Index c = 0; c < a.C; ++c)
      for (const Index p : {0, 1, 2}) a.at(row, p, c) = parts[p][row * a.C + c];
  if (!want.at("eps").is_null()) a.eps = want.at("eps").get<double>();
  if (kind.cap > 0.0) a.cap = want.at("softcap").get<double>();
  if (kind.scale == LogitScale::fixed) a.fixed_scale = want.at("logit_scale").get<double>();
  for (const auto& [name, value] : want.at("params").items()) {
    if (name == "q_norm.weight")
      a.q_gain = flat(value);
    else if (name == "k_norm.weight")
      a.k_gain = flat(value);
    else
      a.parameter = flat(value);
  }
  return g;
}

void check_result(const Golden& g, const Result& got, double tolerance) {
  const json& want = g.wanted;
  CHECK(difference(got.y, flat(want.at("out"))) <= tolerance);
  const char* names[] = {"dq", "dk", "dv"};
  const Leaf qkv = g.input.leaves()[0];
  for (const Index p : {0, 1, 2}) {
    INFO(names[p]);
    CHECK(difference(part(got.gradients[qkv_gradient], qkv, p), flat(want.at(names[p]))) <= tolerance);
  }
  std::size_t parameters = 0;
  for (const auto& [name, value] : want.at("dparams").items()) {
    INFO(name);
    const auto which = name == "q_norm.weight"   ? q_gain_gradient
                       : name == "k_norm.weight" ? k_gain_gradient
                                                 : scale_gradient;
    CHECK(difference(got.gradients[which], flat(value)) <= tolerance);
    ++parameters;
  }
  const std::size_t expected = g.input.parameter.empty() ? (g.input.q_gain.empty() ? 0 : 2) : 1;
  CHECK(parameters == expected);
}

}  // namespace

TEST_CASE("the formula of attention gives the golden numbers", "[unit]") {
  for (const Kind& kind : kinds) {
    INFO(kind.name);
    const Golden g = golden(kind);
    const Result got = oracle(g.input.leaves(), g.weights, g.input.formula());
    check_result(g, got, 1e-12);
    double loss = 0.0;
    for (Index i = 0; i < got.y.size(); ++i) loss += g.weights[i] * got.y[i];
    CHECK(std::abs(loss - g.wanted.at("loss").get<double>()) <= 1e-12);

    const Array<double> S = g.input.scores(), want = flat(g.wanted.at("S"));
    Index n = 0;
    double worst = 0.0;
    for (Index h = 0; h < g.input.H; ++h)
      for (Index i = 0; i < g.input.T; ++i)
        for (Index j = 0; j <= i; ++j)
          worst = std::max(worst, std::abs(S[(h * g.input.T + i) * g.input.T + j] - want[n++]));
    CHECK(n == want.size());
    CHECK(worst <= 1e-12);
  }
}

TEST_CASE("the kernels of attention give the golden numbers", "[unit]") {
  for (const Kind& kind : kinds) {
    INFO(kind.name);
    const Golden g = golden(kind);
    check_result(g, run(g.input.leaves(), g.weights, g.input.op()), 2e-6);
  }
}

TEST_CASE("attention_stats gives the golden numbers", "[unit]") {
  for (const Kind& kind : kinds) {
    INFO(kind.name);
    const Golden g = golden(kind);
    const json& want = g.wanted.at("stats");
    const AttentionStats got = stats_of(g.input);
    CHECK(difference(Array<double>(got.logit_max), flat(want.at("logit_max"))) <= 2e-6);
    CHECK(difference(Array<double>(got.entropy), flat(want.at("entropy"))) <= 2e-6);
    CHECK(difference(Array<double>(got.p_max), flat(want.at("p_max"))) <= 2e-6);
    CHECK(difference(Array<double>(got.q_norm), flat(want.at("q_norm"))) <= 2e-6);
    CHECK(difference(Array<double>(got.k_norm), flat(want.at("k_norm"))) <= 2e-6);
    CHECK(std::abs(got.scale - want.at("scale").get<double>()) <= 2e-6);
  }
}
