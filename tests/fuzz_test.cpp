// The fuzzers' corpora as plain tests: seeds, and every input that ever found a fault.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "catch.h"
#include "fuzz/targets.h"

using namespace qkgpt;

TEST_CASE("what fuzzing starts from and has found passes every target", "[unit]") {
  int inputs = 0, cuts = 0;
  for (const fuzz::Target& target : fuzz::targets) {
    const auto folder = std::filesystem::path(TEST_DATA_DIR) / "fuzz" / "corpus" / target.name;
    int files = 0;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      INFO(entry.path().string());
      std::ifstream file(entry.path(), std::ios::binary);
      const std::string bytes{std::istreambuf_iterator<char>(file), {}};
      CHECK_NOTHROW(target.run(bytes));
      for (std::size_t cut = 0; cut < bytes.size(); cut += 1 + bytes.size() / 16, ++cuts)  // and torn anywhere
        CHECK_NOTHROW(target.run(std::string_view(bytes).substr(0, cut)));
      ++files;
    }
    INFO(target.name);
    CHECK(files >= 3);
    inputs += files;
  }
  std::printf("fuzz corpora: %d inputs whole and %d times cut\n", inputs, cuts);
}
