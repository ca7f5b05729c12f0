#include "train/gradient_sum.h"

#include "expect_error.h"
#include "gradient_check.h"

using namespace qkgpt;
using namespace qkgpt::test;

namespace {

constexpr Index sizes[] = {40, 3, 70000};  // of three parameters; the last one is more than a thread's least share

using Gradient = std::vector<float>;

// Of micro-batch m; numbers of all magnitudes, so that another order of addition shows.
Gradient gradient(Index m) {
  Gradient g;
  for (const Index n : sizes) {
    const Stream stream(7, "gradient", m, n);
    for (Index i = 0; i < n; ++i) {
      const auto e = static_cast<std::uint64_t>(i);
      g.push_back(static_cast<float>(stream.normal(2 * e) * std::pow(10.0, 6.0 * stream.uniform(2 * e + 1))));
    }
  }
  return g;
}

Gradient sum(const Gradient& left, const Gradient& right) {
  Gradient s;
  for (std::size_t i = 0; i < left.size(); ++i) s.push_back(left[i] + right[i]);
  return s;
}

// The tree of gradient_sum.h over micro-batches [first, first + n).
Gradient tree(Index first, Index n) {
  if (n % 2 == 0) return sum(tree(first, n / 2), tree(first + n / 2, n / 2));
  Gradient chain = gradient(first);
  for (Index i = 1; i < n; ++i) chain = sum(chain, gradient(first + i));
  return chain;
}

// What one of `ranks` ranks makes of its micro-batches.
Gradient of_rank(Index micro_batches, int rank, int ranks) {
  Params params;
  for (const Index n : sizes) params.add(std::to_string(n), {n}, false);
  params.allocate(true);
  const Shares shares(micro_batches, rank, ranks);
  GradientSum total(params, shares);
  for (int round = 0; round < 2; ++round) {  // the second one must not see the first
    for (Index leaf = 0; leaf < shares.leaves; ++leaf) {
      if (leaf > 0) total.keep_leaf();
      for (Index i = 0; i < shares.chain; ++i) {
        std::size_t at = 0;
        const Gradient g = gradient(shares.first + leaf * shares.chain + i);
        for (Param& p : params.list())
          for (Index j = 0; j < p.size(); ++j, ++at) p.var.grad[j] = i > 0 ? p.var.grad[j] + g[at] : g[at];
      }
    }
    for (auto p = params.list().rbegin(); p != params.list().rend(); ++p) total.whole_from(*p);
    total.finish();
  }
  Gradient result;
  for (const Param& p : params.list()) result.insert(result.end(), p.var.grad, p.var.grad + p.size());
  return result;
}

}  // namespace

TEST_CASE("micro-batches are summed along one tree, whatever the number of ranks", "[unit]") {
  for (const Index micro_batches : {1, 2, 3, 8, 12}) {
    const Gradient expected = tree(0, micro_batches);
    for (int ranks = 1; micro_batches % ranks == 0; ranks *= 2) {
      std::vector<Gradient> level;
      for (int r = 0; r < ranks; ++r) level.push_back(of_rank(micro_batches, r, ranks));
      for (; level.size() > 1; level.resize(level.size() / 2))
        for (std::size_t i = 0; i < level.size() / 2; ++i) level[i] = sum(level[2 * i], level[2 * i + 1]);
      INFO(micro_batches << " micro-batches, " << ranks << " ranks");
      CHECK(level[0] == expected);
    }
  }
  Gradient chain = gradient(0);
  for (Index m = 1; m < 8; ++m) chain = sum(chain, gradient(m));
  CHECK(chain != tree(0, 8));  // or the test could not fail
}

TEST_CASE("the sum does not depend on the number of threads", "[unit]") {
  const Threads one(1);
  const Gradient expected = of_rank(4, 0, 1);
  for (const int threads : {2, 3}) {
    const Threads guard(threads);
    CHECK(of_rank(4, 0, 1) == expected);
  }
}

TEST_CASE("ranks that cannot share the micro-batches are refused with numbers that can", "[unit]") {
  for (const int ranks : {1, 2, 4, 8}) require_shares(8, ranks);
  require_shares(12, 4);
  const auto refusal = [](Index micro_batches, int ranks) {
    return error_of(ErrorKind::usage, [=] { require_shares(micro_batches, ranks); });
  };
  const std::string end = " (gradient_accumulation_steps) evenly; ";
  CHECK(refusal(8, 3) == "ranks: 3 cannot share 8 micro-batches" + end + "2 or 4 can");
  CHECK(refusal(6, 4) == "ranks: 4 cannot share 6 micro-batches" + end + "2 can, or 4 or 8 micro-batches");
  CHECK(refusal(6, 3) == "ranks: 3 cannot share 6 micro-batches" + end + "2 can");
  CHECK(refusal(1, 2) == "ranks: 2 cannot share 1 micro-batch" + end + "1 can, or 2 micro-batches");
}
