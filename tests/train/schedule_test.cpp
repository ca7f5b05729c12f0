#include "train/schedule.h"

#include "catch.h"

namespace qkgpt {

using test::WithinRel;

TEST_CASE("the default schedule has nanoGPT's values", "[unit]") {
  const Config c;
  CHECK_THAT(learning_rate(c, 0), WithinRel(1e-3 / 101.0, 1e-12));
  CHECK_THAT(learning_rate(c, 99), WithinRel(1e-3 * 100.0 / 101.0, 1e-12));
  CHECK(learning_rate(c, 100) == 1e-3);
  CHECK_THAT(learning_rate(c, 1050), WithinRel(5.5e-4, 1e-12));
  CHECK(learning_rate(c, 2000) == 1e-4);
  CHECK(learning_rate(c, 1000000) == 1e-4);
}

TEST_CASE("every combination of lengths gives a rate from 0 to the peak", "[unit]") {
  for (const Index warmup : {0, 1, 10, 100})
    for (const Index end : {0, 1, 10, 50, 100, 101})
      for (const double low : {0.0, 1e-4, 1e-3})
        for (Index i = 0; i < 130; ++i) {
          Config c;
          c.warmup_iters = warmup, c.lr_decay_iters = end, c.min_lr = low;
          const double lr = learning_rate(c, i);
          REQUIRE((lr >= 0.0 && lr <= 1e-3 * (1 + 1e-12)));
        }
}

TEST_CASE("without decay the rate is constant", "[unit]") {
  Config c;
  c.decay_lr = false;
  for (const Index i : {0, 5, 5000}) CHECK(learning_rate(c, i) == 1e-3);
}

TEST_CASE("the decay ends where max_iters says unless told otherwise", "[unit]") {
  Config c;
  c.max_iters = 100, c.warmup_iters = 0;
  CHECK(learning_rate(c, 99) > 1e-4);
  CHECK(learning_rate(c, 100) == 1e-4);
  c.lr_decay_iters = 50;
  CHECK(learning_rate(c, 50) == 1e-4);
}

}  // namespace qkgpt
