#include "base/rng.h"

#include <cmath>
#include <set>

#include "catch.h"

using qkgpt::Stream;

TEST_CASE("SplitMix64 gives the published outputs", "[unit]") {
  // Reference outputs of seed 1234567 (Rosetta Code, task "Pseudo-random numbers/Splitmix64").
  std::uint64_t state = 1234567;
  const std::uint64_t expected[] = {6457827717110365317u, 3203168211198807973u, 9817491932198370423u,
                                    4593380528125082431u, 16408922859458223821u};
  for (const std::uint64_t e : expected) CHECK(qkgpt::mix64(state += qkgpt::golden_gamma) == e);
}

TEST_CASE("streams differ by seed and purpose and place", "[unit]") {
  std::set<std::uint64_t> keys;
  for (std::uint64_t seed = 0; seed < 3; ++seed)
    for (const char* purpose : {"init", "batch", "dropout"})
      for (int step = 0; step < 10; ++step)
        for (int row = 0; row < 10; ++row) keys.insert(Stream(seed, purpose, step, row).key());
  CHECK(keys.size() == 3 * 3 * 10 * 10);
  CHECK(Stream(1, "ab", 1).key() != Stream(1, "a", 1).key());
}

TEST_CASE("integers below n are uniform and reach both ends", "[unit]") {
  const Stream s(7, "batch");
  int count[5] = {};
  for (std::uint64_t i = 0; i < 50000; ++i) ++count[s.below(i, 5)];
  for (const int c : count) CHECK(std::abs(c - 10000) < 450);  // 5 standard deviations
  CHECK(s.below(0, 1) == 0);
}

TEST_CASE("normals have mean 0 and variance 1 and the tails of a Gaussian", "[unit]") {
  const Stream s(7, "init", std::string_view("transformer.wte.weight"));
  double sum = 0, sum2 = 0, sum4 = 0;
  const int n = 200000;
  for (std::uint64_t i = 0; i < n; ++i) {
    const double x = s.normal(i);
    sum += x, sum2 += x * x, sum4 += x * x * x * x;
  }
  CHECK(std::abs(sum / n) < 0.01);
  CHECK(std::abs(sum2 / n - 1) < 0.016);
  CHECK(std::abs(sum4 / n - 3) < 0.11);
}
