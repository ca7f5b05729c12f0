#include "train/checkpoint.h"

#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <limits>

#include "base/file.h"
#include "catch.h"
#include "expect_error.h"
#include "temp_dir.h"
#include "train/updates.h"

using namespace qkgpt;
using qkgpt::test::contains;
using qkgpt::test::error_of;
using qkgpt::test::TempDir;

namespace {

Gpt& ready(Gpt& gpt) {
  gpt.allocate(true);
  gpt.initialise();
  return gpt;
}

struct Run {
  Config config = [] {
    Config c;
    c.data = "text.txt";
    c.n_layer = 1, c.n_head = 1, c.n_embd = 2, c.block_size = 2, c.batch_size = 2;
    return c;
  }();
  Text text = parse_text("abababbaabbabab", "text.txt");
  Split train = train_split(text, 0.0);
  Gpt gpt{config, text.tokenizer.size()};
  Arena arena;
  Updates updates{ready(gpt), train, arena};

  void save(const std::string& path, const RunState& state = {}) const {
    save_checkpoint(path, gpt, config, text.tokenizer, std::string(64, 'a'), state);
  }
  std::vector<float> everything() const {  // weights and moments
    std::vector<float> all;
    for (const Param& p : gpt.params().list())
      for (const float* part : {static_cast<const float*>(p.value()), static_cast<const float*>(p.exp_avg),
                                static_cast<const float*>(p.exp_avg_sq)})
        all.insert(all.end(), part, part + p.size());
    return all;
  }
};

void put(const std::string& path, std::string_view content) { std::ofstream(path, std::ios::binary) << content; }

}  // namespace

TEST_CASE("a checkpoint gives back weights, moments and state to the bit", "[unit]") {
  const TempDir dir;
  Run run, other;
  for (Index step = 0; step < 3; ++step) REQUIRE(run.updates.make(step).made);
  const RunState state{.step = 3, .best_step = 7, .best_val_loss = 0.1, .evals_since_best = 2, .last_eval_step = 3};
  run.save(dir / "x", state);
  CHECK(file_size(dir / "x") == checkpoint_size(run.gpt, run.config, run.text.tokenizer, std::string(64, 'a')));
  const Checkpoint c = read_checkpoint(dir / "x");
  load_state(c, other.gpt);
  CHECK((other.everything() == run.everything()));
  CHECK(c.state.step == 3);
  CHECK(c.state.best_step == 7);
  CHECK(c.state.best_val_loss == 0.1);
  CHECK(c.state.evals_since_best == 2);
  CHECK(c.state.last_eval_step == 3);
  CHECK((c.tokenizer == run.text.tokenizer));
  other.save(dir / "y", c.state);
  CHECK((read_file(dir / "x") == read_file(dir / "y")));
}

TEST_CASE("a checkpoint cut at any length or with a bit flipped is refused with its name", "[unit]") {
  const TempDir dir;
  Run().save(dir / "whole");
  const std::string whole = read_file(dir / "whole");
  REQUIRE(whole.size() > 2000);
  const auto refusal = [&](const std::string& content) {
    put(dir / "x", content);
    return error_of(ErrorKind::checkpoint, [&] { read_checkpoint(dir / "x"); });
  };
  for (std::size_t n = 0; n < whole.size(); ++n) {
    const std::string message = refusal(whole.substr(0, n));
    if (message.find(dir / "x: damaged") != 0) FAIL("cut to " << n << ": " << message);
  }
  for (std::size_t bit = 0; bit < 8 * whole.size(); bit += 5) {
    std::string bad = whole;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << (bit % 8)));
    const std::string message = refusal(bad);
    if (message.find(dir / "x: ") != 0) FAIL("bit " << bit << ": " << message);
  }
  std::printf("damaged checkpoints: %zu cuts, %zu bits flipped\n", whole.size(), (8 * whole.size() + 4) / 5);
}

TEST_CASE("an update whose loss or gradient is not finite changes nothing", "[unit]") {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    Run run;
    for (Index step = 0; step < 6; ++step) REQUIRE(run.updates.make(step).made);
    Param& p = *std::find_if(run.gpt.params().list().begin(), run.gpt.params().list().end(),
                             [](const Param& q) { return q.name == "transformer.ln_f.weight"; });
    p.value()[1] = bad;
    p.changed();
    const std::vector<float> before = run.everything();
    const UpdateResult r = run.updates.make(6);
    CHECK_FALSE(r.made);
    CHECK_FALSE((std::isfinite(r.loss) && std::isfinite(r.grad_norm)));
    const std::vector<float> after = run.everything();
    CHECK(std::memcmp(before.data(), after.data(), before.size() * sizeof(float)) == 0);
  }
}
