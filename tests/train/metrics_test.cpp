#include "train/metrics.h"

#include <fstream>
#include <random>

#include "base/file.h"
#include "base/text.h"
#include "catch.h"
#include "expect_error.h"
#include "temp_dir.h"

using namespace qkgpt;
using qkgpt::test::contains;
using qkgpt::test::error_of;
using qkgpt::test::TempDir;

namespace {

void put(const std::string& path, std::string_view content) { std::ofstream(path, std::ios::binary) << content; }

const std::string start = "{\"kind\":\"start\"}\n";
std::string row(const char* kind, int step) { return cat("{\"kind\":\"", kind, "\",\"step\":", step, "}\n"); }

// What a resumed run keeps of the file.
std::string kept(const std::string& content, const RunState& state) {
  const TempDir dir;
  put(dir / "m", content);
  { Metrics m(dir / "m", &state); }
  return read_file(dir / "m");
}

}  // namespace

TEST_CASE("a resumed run keeps the rows up to its state", "[unit]") {
  const RunState evaluated{.step = 2, .last_eval_step = 2}, stopped{.step = 2, .last_eval_step = 0};
  const std::string before = start + row("eval", 0) + row("train", 1) + row("train", 2);
  const std::string all = before + row("eval", 2) + row("attention", 2);
  CHECK(kept(all, evaluated) == all);
  CHECK(kept(all + row("train", 3), evaluated) == all);
  CHECK(kept(all, stopped) == before);
  CHECK(kept(before + "{\"kind\":\"train\",\"st", stopped) == before);
  CHECK(kept(before + "garbage\n" + row("train", 2), stopped) == before);
  CHECK(kept("", stopped).empty());
}

TEST_CASE("a metrics file of any bytes is cut to whole rows that belong to the run", "[unit]") {
  std::mt19937 random(3);
  const std::string whole = start + row("eval", 0) + row("train", 1) + row("train", 2);
  const RunState state{.step = 2, .last_eval_step = 0};
  for (int i = 0; i < 500; ++i) {
    std::string bad = whole;
    for (std::size_t n = random() % 4; n > 0; --n) bad[random() % bad.size()] = static_cast<char>(random());
    const std::string left = kept(bad, state);
    CHECK(bad.starts_with(left));
    CHECK((left.empty() || left.back() == '\n'));
  }
  CHECK(kept(std::string(100'000, '[') + "\n", state).empty());
  CHECK(kept(std::string(100'000, '\0'), state).empty());
  CHECK(kept("{\"kind\":\"train\",\"step\":18446744073709551615}\n", state).empty());
}

TEST_CASE("rows that cannot be written are noticed", "[unit]") {
  const TempDir dir;
  make_directories(dir / "m");
  CHECK_THAT(error_of(ErrorKind::disk, [&] { Metrics m(dir / "m", nullptr); }), contains("m: cannot be opened"));
#ifdef __linux__
  Metrics full("/dev/full", nullptr);
  CHECK_FALSE(full.failed());
  full.train(1, 1.0, 1.0, 1.0, 1, 1.0, 1.0);
  CHECK(full.failed());
#endif
}
