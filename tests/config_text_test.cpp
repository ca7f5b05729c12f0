// The config in writing: config.json, help, JSON Schema, committed configs.
#include <clocale>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <locale>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/rng.h"
#include "base/text.h"
#include "catch.h"
#include "config/config.h"

using namespace qkgpt;
using namespace qkgpt::test;

namespace {

std::string file_text(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  REQUIRE(in.is_open());
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

// Random values for every member; `i` counts draws.
struct Dice {
  Stream stream;
  std::uint64_t i = 0;

  Index below(Index n) { return stream.below(i++, n); }
  void roll(Index& x, const Field& f) {
    x = static_cast<Index>(f.low) + below(static_cast<Index>(f.high - f.low) + 1);
    if (below(2) == 0) x = static_cast<Index>(f.low) + below(100);
  }
  void roll(std::uint64_t& x, const Field&) { x = stream.bits(i++); }
  void roll(double& x, const Field& f) {
    const double unit = stream.uniform(i++);
    x = f.high_open ? unit * 0.999 : f.low + unit * std::pow(10.0, static_cast<double>(below(60) - 31));
  }
  void roll(bool& x, const Field&) { x = below(2) == 1; }
  void roll(std::string& x, const Field&) {
    static const char* parts[] = {"a", "\"", "\\", "/", "\n", "é", "日本", "😀", " ", "{", "\x7F", "\x01"};
    x = "x";
    for (Index n = below(6); n > 0; --n) x += parts[below(12)];
  }
  void roll(Attention& x, const Field&) {
    x = attention_table[static_cast<std::size_t>(below(static_cast<Index>(attention_table.size())))].kind;
  }
  template <class T>
  void roll(std::optional<T>& x, const Field& f) {
    x.reset();
    if (below(2) == 0) roll(x.emplace(), f);
  }
};

Config random_config(std::uint64_t seed) {
  Dice dice{Stream(seed, "random config")};
  Config c;
  for (const Field& field : fields()) std::visit([&](auto member) { dice.roll(c.*member, field); }, field.member);
  c.n_head = 1 + dice.below(8), c.n_embd = c.n_head * (1 + dice.below(64));
  c.batch_size = 1 + dice.below(64), c.gradient_accumulation_steps = 1 + dice.below(8);
  c.block_size = 2 + dice.below(1024);
  if (c.min_lr) c.learning_rate = std::max(c.learning_rate, *c.min_lr);
  return c;
}

// Numbers with decimal commas for as long as it lives: German, or a stand-in where that is not installed.
class DecimalComma {
 public:
  DecimalComma() {
    if (std::setlocale(LC_ALL, "de_DE.UTF-8") != nullptr)
      before_ = std::locale::global(std::locale("de_DE.UTF-8"));
    else
      before_ = std::locale::global(std::locale(std::locale::classic(), new Punctuation));
  }
  ~DecimalComma() {
    std::locale::global(before_);
    std::setlocale(LC_ALL, "C");
  }
  DecimalComma(const DecimalComma&) = delete;
  DecimalComma& operator=(const DecimalComma&) = delete;

 private:
  struct Punctuation : std::numpunct<char> {
    char do_decimal_point() const override { return ','; }
    char do_thousands_sep() const override { return '.'; }
    std::string do_grouping() const override { return "\3"; }
  };
  std::locale before_;
};

}  // namespace

TEST_CASE("a written config reads back as the same config", "[unit]") {
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    const Config c = random_config(seed);
    const std::string text = to_json(c);
    const Config back = parse_config(text, "config.json");
    REQUIRE(to_json(back) == text);
    REQUIRE(changed_keys(c, back).empty());
    REQUIRE(back.learning_rate == c.learning_rate);
    REQUIRE(back.seed == c.seed);
    REQUIRE(back.data == c.data);
  }
}

TEST_CASE("a written config holds every key in the order of the table", "[unit]") {
  Config c;
  c.data = "日本.txt", c.out_dir = "r", c.min_lr = 1e-4, c.attention = Attention::qk_norm, c.learning_rate = 1;
  const auto json = nlohmann::ordered_json::parse(to_json(c));
  std::vector<std::string> names, table;
  for (const auto& item : json.items()) names.push_back(item.key());
  for (const Field& field : fields()) table.push_back(field.name);
  CHECK(names == table);
  CHECK(names.size() == 37);  // spec.md, "Config"
  CHECK(json.at("attention") == "qk_norm");
  CHECK(json.at("min_lr") == 1e-4);
  CHECK(json.at("init_from").is_null());
  CHECK_THAT(to_json(c), contains("\n  \"data\": \"日本.txt\",\n  \"out_dir\": \"r\",\n"));
  const std::string portable = to_json(c, true);
  CHECK(portable.find("out_dir") == std::string::npos);
  CHECK(portable.find("threads") == std::string::npos);
  CHECK(changed_keys(parse_config(portable, "x"), c) == std::vector<std::string>{"out_dir"});
}

TEST_CASE("changed keys are those whose values differ", "[unit]") {
  Config a, b;
  CHECK(changed_keys(a, b).empty());
  b.dropout = 0.1, b.min_lr = 0.0, b.seed = 1, b.attention = Attention::qk_norm;
  CHECK(changed_keys(a, b) == std::vector<std::string>{"seed", "dropout", "attention", "min_lr"});
}

TEST_CASE("each key of the table stands for a member of its own", "[unit]") {
  for (const Field& a : fields()) {
    int same = 0;
    for (const Field& b : fields()) same += a.member == b.member;
    CHECK(same == 1);
  }
}

TEST_CASE("help lists every key with default, range and meaning", "[unit]") {
  const std::string help = help_text();
  for (const Field& field : fields()) {
    INFO(field.name);
    const std::size_t at = help.find(cat("  --", field.name, "="));
    REQUIRE(at != std::string::npos);
    const std::string lines = help.substr(at, help.find('\n', help.find('\n', at) + 1) - at);
    CHECK_THAT(lines,
               contains(field.name == std::string("attention") ? "one of the kinds below" : expected_text(field)));
    CHECK_THAT(lines, contains(cat("\n      ", field.meaning)));
    std::string value = value_text(Config(), field);
    if (value.front() == '"') value = value.substr(1, value.size() - 2);
    CHECK_THAT(lines, contains(cat("=", value)));
  }
  for (const AttentionRow& r : attention_table) CHECK_THAT(help, contains(r.meaning));
  std::istringstream in(help);
  for (std::string line; std::getline(in, line);) CHECK(line.size() <= 110);
}

TEST_CASE("the schema says what the table says", "[unit]") {
  const auto schema = nlohmann::json::parse(json_schema());
  CHECK(schema.at("additionalProperties") == false);
  const auto& keys = schema.at("properties");
  CHECK(keys.size() == fields().size() + 1);
  for (const Field& field : fields()) {
    INFO(field.name);
    const auto& key = keys.at(field.name);
    CHECK(key.at("description") == field.meaning);
    const std::string value = value_text(Config(), field);
    if (value != "\"\"") CHECK(key.at("default") == nlohmann::json::parse(value));
    if (!key.contains("type")) continue;
    const std::string type = key.at("type").dump();
    CHECK((type.find("\"null\"") != std::string::npos) == (expected_text(field).find("or null") != std::string::npos));
    if (type.find("integer") == std::string::npos && type.find("number") == std::string::npos) continue;
    CHECK(key.at(field.low_open ? "exclusiveMinimum" : "minimum").get<double>() == field.low);
    CHECK(key.at(field.high_open ? "exclusiveMaximum" : "maximum").get<double>() == field.high);
  }
  CHECK(keys.at("attention").at("enum").size() == attention_table.size());
  CHECK(keys.at("attention").at("enum").at(3) == "qk_norm");
}

TEST_CASE("the committed schema is the generated one", "[unit]") {
  if (std::getenv("QKGPT_WRITE_SCHEMA")) std::ofstream(CONFIGS_DIR "/schema.json") << json_schema();
  CHECK(file_text(CONFIGS_DIR "/schema.json") == json_schema());
}

TEST_CASE("the committed configs say what their names promise", "[unit]") {
  const std::string dir = CONFIGS_DIR "/";
  Config expected;
  expected.data = "data/tinyshakespeare.txt", expected.out_dir = "runs/shakespeare_char_cpu";
  const Config cpu = load_config({dir + "shakespeare_char_cpu.json"}, {});
  CHECK(changed_keys(cpu, expected) == std::vector<std::string>{"min_lr", "lr_decay_iters"});  // spelled out
  CHECK((min_lr(cpu) == 1e-4 && lr_decay_iters(cpu) == 2000));

  const Config gpu = load_config({dir + "shakespeare_char.json"}, {});  // nanoGPT config/train_shakespeare_char.py
  CHECK((gpu.n_layer == 6 && gpu.n_head == 6 && gpu.n_embd == 384 && gpu.block_size == 256 && gpu.dropout == 0.2));
  CHECK((gpu.batch_size == 64 && gpu.max_iters == 5000 && gpu.lr_decay_iters == 5000 && gpu.warmup_iters == 100));
  CHECK((gpu.learning_rate == 1e-3 && gpu.min_lr == 1e-4 && gpu.beta2 == 0.99 && gpu.eval_iters == 200));

  const Config quick = load_config({dir + "quickstart.json"}, {});
  const Config normed = load_config({dir + "quickstart.json", dir + "qk_norm.json"}, {});
  CHECK(changed_keys(quick, normed) == std::vector<std::string>{"out_dir", "attention"});
  CHECK(normed.out_dir == "runs/quickstart+qk_norm");
}

TEST_CASE("numbers have dots in every locale", "[unit]") {
  Config c;
  c.data = "t", c.dropout = 0.5, c.max_iters = 123456;
  const std::string plain = to_json(c), help = help_text(), schema = json_schema();
  const DecimalComma comma;
  std::ostringstream probe;
  probe << 0.5;
  REQUIRE(probe.str() == "0,5");
  CHECK(to_json(c) == plain);
  CHECK(help_text() == help);
  CHECK(json_schema() == schema);
  CHECK(parse_config(plain, "c").dropout == 0.5);
  CHECK(parse_config(plain, "c").learning_rate == 1e-3);
  CHECK(load_config({}, {{"data", "t"}, {"dropout", ".25"}}).dropout == 0.25);
  CHECK_THROWS_AS(load_config({}, {{"data", "t"}, {"dropout", "0,25"}}), Error);
  CHECK_THROWS_WITH(parse_config(R"({"data": "t", "dropout": 1.5, "n_embd": 12345678})", "c"),
                    "c:1:26: dropout: 1.5 is out of range; expected a number >= 0 and < 1\n"
                    "c:1:41: n_embd: 12345678 is out of range; expected an integer >= 1 and <= 1048576");
}

TEST_CASE("any text is a config or an Error of usage", "[unit]") {
  const std::string seed_text =
      "// c\n{\"data\": \"t\\u00e9\\\"\", /* x */ \"dropout\": 1e-1, \"n_layer\": [3, {}], \"bias\": nul}";
  const std::string_view alphabet = "{}[]\":,/*\\\n 01e.+-_tNu\xC3\xA9\xEF\xBB\xBF";
  int readable = 0;
  for (std::uint64_t seed = 0; seed < 3000; ++seed) {
    const Stream dice(seed, "random text");
    std::string text = seed % 3 == 0 ? "{\"bias\": true, \"data\": \"t\"}" : seed_text;
    for (std::uint64_t i = 0; i < 1 + seed % 4; ++i) {
      const auto at = static_cast<std::size_t>(dice.below(3 * i, static_cast<Index>(text.size())));
      const char c = alphabet[static_cast<std::size_t>(dice.below(3 * i + 1, std::ssize(alphabet)))];
      switch (dice.below(3 * i + 2, 4)) {
        case 0: text[at] = c; break;
        case 1: text.insert(at, 1, c); break;
        case 2: text.erase(at, 1 + seed % 5); break;
        default: text.resize(at);
      }
      if (text.empty()) text.push_back('{');
    }
    try {
      parse_config(text, "c");
      ++readable;
    } catch (const Error& error) {
      REQUIRE(std::string_view(error.what()).size() > 10);
    }
  }
  CHECK(readable > 0);
}
