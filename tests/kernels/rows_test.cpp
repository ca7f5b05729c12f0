// Sums of rows, shards, dropout masks, threads.
#include "kernels/rows.h"

#include <atomic>
#include <cstdlib>

#include "gradient_check.h"
#include "kernels/mask.h"

using namespace qkgpt;
using namespace qkgpt::test;

TEST_CASE("row_sum adds every term once", "[unit]") {
  for (Index n = 0; n <= 70; ++n) {
    std::vector<float> numbers(static_cast<std::size_t>(n));
    const auto sum_of_numbers = [&] {
      return row_sum(n, [&](Index c, auto count) { return load_part(numbers.data() + c, count); });
    };
    for (Index c = 0; c < n; ++c) numbers[static_cast<std::size_t>(c)] = static_cast<float>(c + 1);
    CHECK(sum_of_numbers() == static_cast<float>(n * (n + 1) / 2));
    const Array<double> x = normals(n, 4);
    double sum = 0.0, size = 0.0;
    for (const double v : x) sum += v, size += std::abs(v);
    numbers.assign(x.begin(), x.end());
    CHECK(std::abs(static_cast<double>(sum_of_numbers()) - sum) <= 8.0 * 0x1p-24 * size);
  }
}

TEST_CASE("shards cover all rows and their sums add up in double", "[unit]") {
  CHECK(shards(0) == 0);
  CHECK(shards(1) == 1);
  CHECK(shards(48) == 1);
  CHECK(shards(49) == 2);
  const float partial[] = {1.0f, 2e8f, 2.0f, 3.0f, 3.0f, -2e8f};  // three shards of two columns
  float out[] = {10.0f, 20.0f};
  add_shards(partial, 3, 2, 2, true, out);
  CHECK(out[0] == 16.0f);
  CHECK(out[1] == 23.0f);
  add_shards(partial, 3, 2, 2, false, out);
  CHECK(out[0] == 6.0f);
  CHECK(out[1] == 3.0f);
}

TEST_CASE("a piece of a dropout mask is that piece of the whole", "[unit]") {
  const std::uint64_t key = Stream(1, "dropout").key();
  float whole[64];
  dropout_mask(0.4, key, 0, 64, whole);
  for (Index first = 0; first < 20; ++first)
    for (Index n = 0; n < 20; ++n) {
      std::vector<float> piece(static_cast<std::size_t>(n) + 1, 7.0f);
      dropout_mask(0.4, key, first, n, piece.data());
      CHECK(std::equal(piece.begin(), piece.end() - 1, whole + first));
      CHECK(piece.back() == 7.0f);
    }
}

TEST_CASE("element e of a dropout mask is decided by draw e", "[unit]") {
  const Stream stream(1, "dropout");
  float mask[101];
  dropout_mask(0.25, stream.key(), 0, 101, mask);
  for (std::uint64_t e = 0; e < 101; ++e) {
    const std::uint64_t draw = stream.bits(e / 2) >> (e % 2 ? 32 : 0) & 0xFFFFFFFFu;
    CHECK(mask[e] == (draw < 0x40000000u ? 0.0f : static_cast<float>(4.0 / 3.0)));
  }
}

TEST_CASE("dropout masks keep the stated share in each half of a draw", "[unit]") {
  const Index n = 100000;
  std::vector<float> mask(static_cast<std::size_t>(n));
  for (const double p : {0.1, 0.5, 0.9}) {
    dropout_mask(p, 77, 0, n, mask.data());
    double kept[2] = {};
    for (Index i = 0; i < n; ++i) kept[i % 2] += mask[static_cast<std::size_t>(i)] != 0.0f;
    for (const double k : kept) CHECK(std::abs(k - 0.5e5 * (1.0 - p)) < 5.0 * std::sqrt(0.5e5 * p * (1.0 - p)));
  }
}

TEST_CASE("parallel_for covers every item once", "[unit]") {
  for (const int threads : {1, 2, 3, 7}) {
    const Threads guard(threads);
    for (const Index n : {0, 1, 5, 100})
      for (const Index grain : {0, 1, 7, 1000}) {
        std::vector<int> seen(static_cast<std::size_t>(n));
        std::vector<Index> smallest(7, n);
        parallel_for(n, grain, [&](Index begin, Index end, int thread) {
          for (Index i = begin; i < end; ++i) ++seen[static_cast<std::size_t>(i)];
          smallest[static_cast<std::size_t>(thread)] = end - begin;
        });
        CHECK(std::count(seen.begin(), seen.end(), 1) == n);
        for (const Index piece : smallest) CHECK(piece >= std::min(n, grain));
      }
  }
}

#ifdef __linux__
TEST_CASE("one thread a core stays on its core and fewer or more go where they like", "[unit]") {
  const auto places = [] {
    cpu_set_t set;
    REQUIRE(sched_getaffinity(0, sizeof set, &set) == 0);
    return CPU_COUNT(&set);
  };
  const Threads restore(1);
  const int cores = places();
  if (!has_openmp || cores < 2 || cores > 64 || std::getenv("OMP_PROC_BIND")) return;
  for (const int threads : {cores, 1, cores + 1, cores}) {
    set_thread_count(threads);
    std::vector<int> seen(static_cast<std::size_t>(threads));
    std::atomic<int> ready = 0;
    parallel_for(threads, 1, [&](Index, Index, int thread) {
      cpu_set_t set;
      sched_getaffinity(0, sizeof set, &set);
      seen[static_cast<std::size_t>(thread)] = CPU_COUNT(&set);
      ++ready;  // all of them at work at once, but for a system that gives fewer
      for (int spins = 0; ready < std::min(threads, cores) && spins < 100000000; ++spins) {
      }
    });
    for (const int count : seen)  // 0: others have done this thread's share before it came
      if (count > 0) CHECK(count == (threads == cores ? 1 : cores));
    CHECK(std::any_of(seen.begin(), seen.end(), [](int count) { return count > 0; }));
  }
}
#endif
