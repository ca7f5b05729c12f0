#include "cli/options.h"

#include "base/text.h"
#include "catch.h"

using namespace qkgpt;
using namespace qkgpt::test;

namespace {

const Command& sample() {
  static const Command command = {
      .name = "sample",
      .synopsis = "RUN|CHECKPOINT [options]",
      .summary = "Generates text.",
      .least_positionals = 1,
      .most_positionals = 1,
      .options = {{"prompt", "TEXT", "a newline", "text to begin with"},
                  {"top-k", "N", "0", "keep the N likeliest; 0: all"},
                  {"temperature", "X", "0.8", "0: greedy"},
                  {"seed", "N", "1337", "of the draws"},
                  {"no-escape", "", "", "take the prompt as it is"}},
  };
  return command;
}

const Command& train() {
  static const Command command = {
      .name = "train",
      .synopsis = "[CONFIG.json ...] [--KEY=VALUE ...]",
      .summary = "Trains.",
      .most_positionals = any_number,
      .options = {{"resume", "CHECKPOINT", "", "go on with a run", true}, {"dry-run", "", "", "train nothing"}},
      .config_keys = true,
  };
  return command;
}

Arguments parse(const Command& command, std::vector<std::string> words) { return parse_arguments(command, words); }

std::string fault(const Command& command, std::vector<std::string> words) {
  try {
    parse_arguments(command, words);
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::usage);
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("values are taken as they are", "[unit]") {
  const auto prompt = [](std::vector<std::string> words) {
    words.push_back("r");
    const Arguments arguments = parse(sample(), words);
    CHECK(arguments.positionals == std::vector<std::string>{"r"});
    return arguments.get("prompt", "none");
  };
  CHECK(prompt({}) == "none");
  CHECK(prompt({"--prompt="}).empty());
  CHECK(prompt({"--prompt", ""}).empty());
  for (const char* value :
       {"-hello", "--x", "--", "--top_k", "-h", "a=b", "=", " x ", "a,b", "a-b_c", "é\n\"x\\", "--prompt=2"}) {
    CHECK(prompt({"--prompt", value}) == value);
    CHECK(prompt({cat("--prompt=", value)}) == value);
  }
  const std::string large(1 << 20, 'x');  // would overflow the stack of a std::regex
  CHECK(prompt({"--prompt", large}) == large);
}

TEST_CASE("hyphens and underscores are the same inside a name", "[unit]") {
  for (const char* name : {"--top-k", "--top_k"}) {
    CHECK(parse(sample(), {"r", name, "3"}).integer("top-k", 0, 0) == 3);
    CHECK(parse(sample(), {cat(name, "=3"), "r"}).integer("top-k", 0, 0) == 3);
  }
  const Arguments a = parse(train(), {"--learning-rate", "1e-3", "--dry_run", "--n_layer=2"});
  CHECK(a.has("dry-run"));
  REQUIRE(a.overrides.size() == 2);
  CHECK((a.overrides[0].key == "learning_rate" && a.overrides[0].value == "1e-3"));
  CHECK((a.overrides[1].key == "n_layer" && a.overrides[1].value == "2"));
  CHECK(fault(train(), {"--n_layer=2", "--n-layer=2"}) == "--n_layer: given twice; expected once");
  CHECK(fault(sample(), {"r", "--no-escape", "--no_escape"}) == "--no-escape: given twice; expected once");
}

TEST_CASE("positionals keep their order and their commas", "[unit]") {
  CHECK(parse(train(), {"a,b.json", "--bias", "false", "c-d_e.json", "-", ""}).positionals ==
        std::vector<std::string>{"a,b.json", "c-d_e.json", "-", ""});
  CHECK(parse(train(), {"a", "--", "--n_layer=2", "--", "-x"}).positionals ==
        std::vector<std::string>{"a", "--n_layer=2", "--", "-x"});
  CHECK(fault(sample(), {}) == "sample: an argument is missing; usage: qkgpt sample RUN|CHECKPOINT [options]");
  CHECK(fault(sample(), {"r", "s"}) == "s: stray argument; usage: qkgpt sample RUN|CHECKPOINT [options]");
  CHECK(fault(sample(), {"r", "top_k=3"}) == "top_k=3: stray argument; did you mean --top-k?");
  CHECK(fault(sample(), {"r", "--", "--top-k=3"}).find("--top-k=3: stray argument") == 0);
}

TEST_CASE("an optional value is joined by an equals sign", "[unit]") {
  const Arguments alone = parse(train(), {"--resume", "FILE"});
  CHECK((alone.has("resume") && alone.get("resume", "x").empty()));
  CHECK(alone.positionals == std::vector<std::string>{"FILE"});
  CHECK(parse(train(), {"--resume=a=b"}).get("resume", "") == "a=b");
  CHECK(fault(train(), {"--resume="}) == "--resume: no value after =; expected --resume or --resume=CHECKPOINT");
  CHECK(!parse(train(), {}).has("resume"));
}

TEST_CASE("unknown and incomplete options are refused with a suggestion", "[unit]") {
  CHECK(fault(train(), {"--max_iter=5"}) == "--max_iter: unknown option; did you mean --max_iters?");
  CHECK(fault(sample(), {"r", "--topk", "5"}) == "--topk: unknown option; did you mean --top-k?");
  CHECK(fault(train(), {"--dryrun"}) == "--dryrun: unknown option; did you mean --dry-run?");
  CHECK(fault(train(), {"-n_layer=5"}) == "-n_layer=5: unknown option; did you mean --n_layer?");
  for (const char* word : {"--zzzzzzzz", "--=1", "---", "-3"})
    CHECK(fault(train(), {word}).find("unknown option; see --help") != std::string::npos);
  CHECK(fault(sample(), {"r", "--n_layer=2"}).find("--n_layer: unknown option") == 0);  // a key of train alone
  CHECK(fault(sample(), {"r", "--prompt"}) == "--prompt: no value; expected --prompt=TEXT");
  CHECK(fault(train(), {"--bias"}) == "--bias: no value; expected --bias=VALUE");
  CHECK(fault(train(), {"--dry-run=no"}) == "--dry-run: takes no value; expected --dry-run alone");
}

TEST_CASE("numbers of options are whole texts in range", "[unit]") {
  const auto with = [](const std::string& name, const std::string& value) {
    return parse(sample(), {"r", name, value});
  };
  CHECK(with("--top-k", "1e3").integer("top-k", 0, 0) == 1000);
  CHECK(with("--temperature", ".5").real("temperature", 0.8, 0) == 0.5);
  CHECK(with("--temperature", "1").real("temperature", 0.8, 0) == 1.0);
  CHECK(with("--seed", "18446744073709551615").unsigned_integer("seed", 1) == UINT64_MAX);
  const Arguments none = parse(sample(), {"r"});
  CHECK((none.integer("top-k", 7, 0) == 7 && none.real("temperature", 0.8, 0) == 0.8 &&
         none.unsigned_integer("seed", 9) == 9));
  for (const char* wrong : {"", "3x", " 3", "3 ", "0x10", "3.5", "nan", "true", "--3", "3,5"})
    CHECK_THROWS_WITH(
        with("--top-k", wrong).integer("top-k", 0, 0),
        cat("--top-k: ", wrong == std::string("3.5") || wrong == std::string("true") ? wrong : cat("\"", wrong, "\""),
            " is not an integer; expected an integer >= 0"));
  CHECK_THROWS_WITH(with("--top-k", "-3").integer("top-k", 0, 0),
                    "--top-k: -3 is out of range; expected an integer >= 0");
  CHECK_THROWS_WITH(with("--top-k", "9").integer("top-k", 0, 1, 8),
                    "--top-k: 9 is out of range; expected an integer >= 1 and <= 8");
  CHECK_THROWS_WITH(with("--top-k", "5e9").integer("top-k", 0, 0),
                    "--top-k: 5e9 is out of range; expected an integer >= 0 and <= 2147483647");
  CHECK_THROWS_WITH(with("--temperature", "inf").real("temperature", 1, 0),
                    "--temperature: \"inf\" is not a number; expected a number >= 0");
  CHECK_THROWS_WITH(with("--temperature", "0").real("temperature", 1, 0, 1, true),
                    "--temperature: 0 is out of range; expected a number > 0 and <= 1");
  CHECK_THROWS_WITH(with("--temperature", "1").real("temperature", 1, 0, 1, false, true),
                    "--temperature: 1 is out of range; expected a number >= 0 and < 1");
  CHECK_THROWS_WITH(with("--seed", "-1").unsigned_integer("seed", 1),
                    "--seed: -1 is not a 64-bit integer; expected an integer from 0 to 18446744073709551615");
}

TEST_CASE("help lists the options of a command and the keys of the config", "[unit]") {
  const std::string help = command_help(sample());
  CHECK(help.find("usage: qkgpt sample RUN|CHECKPOINT [options]\n\nGenerates text.\n") == 0);
  CHECK_THAT(help, contains("\n  --top-k=N                 keep the N likeliest; 0: all (default: 0)\n"));
  CHECK_THAT(help, contains("\n  --no-escape               take the prompt as it is\n"));
  CHECK_THAT(help, contains("\n  --help                    this text\n"));
  CHECK(help.find("n_layer") == std::string::npos);
  CHECK_THAT(command_help(train()), contains("\n  --resume[=CHECKPOINT]     go on with a run\n"));
  CHECK_THAT(command_help(train()), contains(help_text()));
  CHECK(parse(sample(), {"--help"}).has("help"));
  CHECK(parse(sample(), {"-h"}).has("help"));
}
