#include "config/config.h"

#include <stdlib.h>  // mkdtemp

#include <cmath>
#include <filesystem>
#include <fstream>

#include "base/text.h"
#include "catch.h"

using namespace qkgpt;
using namespace qkgpt::test;

namespace {

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// The message of the Error that `action` throws, "" if it throws none.
template <class Action>
std::string message_of(Action action) {
  try {
    action();
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::usage);
    return error.what();
  }
  return "";
}

// Faults of a config text called c.json; `text` is the inside of the object, data comes in front of it.
std::string faults(const std::string& text) {
  return message_of([&] { parse_config(cat("{\"data\": \"t\", ", text, "}"), "c.json"); });
}

std::string faults_of_text(const std::string& text) {
  return message_of([&] { parse_config(text, "c.json"); });
}

std::string typed_faults(const std::string& key, const std::string& value) {
  return message_of([&] { load_config({}, {{"data", "t"}, {key, value}}); });
}

Config typed(const std::string& key, const std::string& value) {
  return load_config({}, {{"data", "t"}, {key, value}});
}

// A directory of its own, made the current one and removed at the end.
class Workplace {
 public:
  Workplace() : before_(std::filesystem::current_path()) {
    std::string name = (std::filesystem::temp_directory_path() / "qkgpt_config_XXXXXX").string();
    REQUIRE(mkdtemp(name.data()) != nullptr);
    path_ = name;
    std::filesystem::current_path(path_);
  }
  ~Workplace() {
    std::filesystem::current_path(before_);
    std::filesystem::remove_all(path_);
  }
  Workplace(const Workplace&) = delete;
  Workplace& operator=(const Workplace&) = delete;
  static void write(const std::string& name, const std::string& text) { std::ofstream(name, std::ios::binary) << text; }

 private:
  std::filesystem::path before_, path_;
};

}  // namespace

TEST_CASE("an empty object and data give nanoGPT's CPU run", "[unit]") {
  const Config c = parse_config(R"({"data": "t"})", "c.json");
  CHECK(c.data == "t");
  CHECK((c.n_layer == 4 && c.n_head == 4 && c.n_embd == 128 && c.block_size == 64 && c.batch_size == 12));
  CHECK((c.max_iters == 2000 && lr_decay_iters(c) == 2000 && c.warmup_iters == 100));
  CHECK(c.learning_rate == 1e-3);
  CHECK_THAT(min_lr(c), WithinRel(1e-4, 1e-15));
  CHECK_THAT(qk_scale_init(c), WithinAbs(11.977, 5e-4));  // log2(64 * 63), attention.md
}

TEST_CASE("a derived value gives way to a given one", "[unit]") {
  const Config c = parse_config(R"({"data": "t", "min_lr": 5e-4, "lr_decay_iters": 7, "qk_scale_init": 3})", "c.json");
  CHECK((min_lr(c) == 5e-4 && lr_decay_iters(c) == 7 && qk_scale_init(c) == 3.0));
}

TEST_CASE("every fault of a file is reported at its place", "[unit]") {
  const char* text = R"(/* all wrong */ {
  "max_iter": 5, "é": 1, "n_layer": 3.9, "n_head": 1e30,
  "n_layer": 4, "learning_rate": NaN, "dropout": true,
  "seed": -1, "seed2": [1, {"n_embd": 3}], "block_size": "8" , "batch_size": null,
  "bias": True, "beta1": 1e400, "beta2": .5, "weight_decay": -1e999, "eval_iters": {"a": 1},
  "attention": "qknorm", "max_iters": 5000000000, "patience": 1099511627776, "grad_clip" /* : */ : // :
    "3", "é\"x": 2, "data": 5, "out_dir": "a\u0000b", "qk_norm_eps": 1e-50, "val_fraction": 0.99999999999,
}
)";
  const char* expected = R"(c.json:2:3: max_iter: unknown key; did you mean max_iters?
c.json:2:18: é: unknown key; see qkgpt train --help
c.json:2:37: n_layer: 3.9 is not an integer; expected an integer >= 1 and <= 10000
c.json:2:52: n_head: 1e30 is out of range; expected an integer >= 1 and <= 1048576
c.json:3:3: n_layer: given twice, first at 2:26; keep one
c.json:3:34: learning_rate: NaN is not JSON; expected a number >= 0
c.json:3:50: dropout: true is not a number; expected a number >= 0 and < 1
c.json:4:11: seed: -1 is out of range; expected an integer from 0 to 18446744073709551615
c.json:4:15: seed2: unknown key; did you mean seed?
c.json:4:58: block_size: "8" is not an integer; expected an integer >= 1 and <= 1048576
c.json:4:78: batch_size: null is not an integer; expected an integer >= 1 and <= 1048576
c.json:5:11: bias: True is not JSON; expected true or false
c.json:5:26: beta1: 1e400 is out of range; expected a number >= 0 and < 1
c.json:5:42: beta2: .5 is not JSON; expected a number >= 0 and < 1
c.json:5:62: weight_decay: -1e999 is out of range; expected a number >= 0
c.json:5:84: eval_iters: {...} is not an integer; expected an integer >= 1
c.json:6:16: attention: "qknorm" is unknown; expected one of "standard", "standard_temperature", "softcap", "qk_norm", "qk_norm_fixed", "qk_rmsnorm", "qk_rmsnorm_full", "qk_layernorm" (nearest: "qk_norm")
c.json:6:39: max_iters: 5000000000 is out of range; expected an integer >= 0 and <= 2147483647
c.json:6:63: patience: 1099511627776 is out of range; expected an integer >= 0 and <= 2147483647
c.json:7:5: grad_clip: "3" is not a number; expected a number >= 0
c.json:7:10: é\"x: unknown key; see qkgpt train --help
c.json:7:29: data: 5 is not a string; expected a string
c.json:7:43: out_dir: "a\u0000b" holds a NUL; expected a path
c.json:7:70: qk_norm_eps: 1e-50 is out of range; expected a number >= 1.2e-38
c.json:7:93: val_fraction: 0.99999999999 is out of range; expected a number >= 0 and < 1
c.json:8:1: comma before '}'; remove it)";
  CHECK(faults_of_text(text) == expected);
}

TEST_CASE("broken JSON is reported at its place", "[unit]") {
  const std::pair<const char*, const char*> cases[] = {
      {"{\"data\": \"t\"", "1:13: unexpected end of input; expected ',' or '}'"},
      {"{\"data\": \"t\",\n}", "2:1: comma before '}'; remove it"},
      {"{\"data\": \"t\",\n", "2:1: unexpected end of input; expected a key in double quotes"},
      {"{\"data\": \"t", "1:12: invalid string: missing closing quote"},
      {"{\"data\": \"t\n\"}", "1:12: invalid string: control character U+000A (LF) must be escaped to \\u000A or \\n"},
      {"{\"data\" \"t\"}", "1:9: unexpected string literal; expected ':'"},
      {"{\"data\": \"t\"\n \"bias\": true}", "2:2: unexpected string literal; expected ',' or '}'"},
      {"{\"n_layer\": 4 50}", "1:15: unexpected number literal; expected ',' or '}'"},
      {"{\"data\": }", "1:10: unexpected '}'; expected a value"},
      {"{\"data\": \"t\"} {}", "1:15: unexpected '{'; expected end of input"},
      {"{\"data\": /* t", "1:14: invalid comment; missing closing '*/'"},
      {"{n_layer: 3}", "1:2: a bare word or sign; expected JSON, with keys and strings in double quotes"},
      {"{'n_layer': 3}", "1:2: a bare word or sign; expected JSON, with keys and strings in double quotes"},
      {"{\"data\": [1 2]}",
       "1:10: data: [...] is not a string; expected a string\nc.json:1:13: unexpected number literal; "
       "expected "
       "',' or ']'"},
      {"{\"data\": [1e400]}",
       "1:10: data: [...] is not a string; expected a string\nc.json:1:11: number overflow parsing '1e400'"},
      {"{\"data\": {\"a\": NaN}}",
       "1:10: data: {...} is not a string; expected a string\nc.json:1:16: a bare word or sign; expected "
       "JSON, "
       "with keys and strings in double quotes"},
  };
  for (const auto& [text, fault] : cases) CHECK(faults_of_text(text) == cat("c.json:", fault));
  const char* no_object = "not a JSON object; expected {\"key\": value, ...}";
  for (const char* text : {"", " ", "[1]", "3", "NaN", "\"data\"", "// {}", "/* {"})
    CHECK_THAT(faults_of_text(text), contains(no_object));
  CHECK(faults_of_text("// an array\n [1]") == cat("c.json:2:2: ", no_object));
  CHECK_THAT(faults_of_text(std::string("{\"data\": \"t\"}\0 more", 19)), contains(no_object));
}

TEST_CASE("words that are no JSON are all found", "[unit]") {
  CHECK(faults(R"("n_layer": 03, "n_head": 3x, "bias": truex, "seed": +1, "beta1": -Infinity)") ==
        "c.json:1:26: n_layer: 03 is not JSON; expected an integer >= 1 and <= 10000\n"
        "c.json:1:40: n_head: 3x is not JSON; expected an integer >= 1 and <= 1048576\n"
        "c.json:1:52: bias: truex is not JSON; expected true or false\n"
        "c.json:1:67: seed: +1 is not JSON; expected an integer from 0 to 18446744073709551615\n"
        "c.json:1:80: beta1: -Infinity is not JSON; expected a number >= 0 and < 1");
  std::string many;
  for (int i = 0; i < 200; ++i) many += cat("\"k", i, "\": NaN, ");
  CHECK_THAT(faults(many + "\"bias\": true"), contains("too many words that are no JSON"));
}

TEST_CASE("comments, byte order mark and $schema are accepted", "[unit]") {
  const Config c = parse_config(
      "\xEF\xBB\xBF// first\r\n/* { */ {\"$schema\": [1], \"data\": \"http://x /* y */\", // \"bias\": true\n"
      "\"n_layer\": /* 2 */ 3 /**/}  // end",
      "c.json");
  CHECK(c.data == "http://x /* y */");
  CHECK(c.n_layer == 3);
  CHECK(!c.bias);
  CHECK_THAT(faults_of_text("\xEF\xBB\xBF{\"x\": 1}"), contains("c.json:1:2: x: unknown"));
}

TEST_CASE("an integer stands for a real and an integral real for an integer", "[unit]") {
  const Config c = parse_config(
      R"({"data": "t", "learning_rate": 1, "max_iters": 1e3, "n_layer": 2.0, "seed": 1.5e1, "warmup_iters": -0})", "c");
  CHECK((c.learning_rate == 1.0 && c.max_iters == 1000 && c.n_layer == 2 && c.seed == 15 && c.warmup_iters == 0));
  CHECK(parse_config(R"({"data": "t", "seed": 18446744073709551615})", "c").seed == UINT64_MAX);
  CHECK(faults("\"seed\": 18446744073709551616") ==
        "c.json:1:23: seed: 18446744073709551616 is out of range; expected an integer from 0 to "
        "18446744073709551615");
  CHECK(!std::signbit(parse_config(R"({"data": "t", "dropout": -0.0})", "c").dropout));
}

TEST_CASE("every range holds at its ends", "[unit]") {
  for (const Field& field : fields()) {
    const bool is_count = std::holds_alternative<Index Config::*>(field.member) ||
                          std::holds_alternative<std::optional<Index> Config::*>(field.member);
    const bool is_real = std::holds_alternative<double Config::*>(field.member) ||
                         std::holds_alternative<std::optional<double> Config::*>(field.member);
    if (!is_count && !is_real) continue;
    const std::string below = is_count ? std::to_string(static_cast<Index>(field.low) - 1) : "-1e-3";
    const std::string above = is_count ? std::to_string(static_cast<Index>(field.high) + 1) : "1.1e30";
    INFO(field.name);
    CHECK_THAT(faults(cat("\"", field.name, "\": ", below)),
               contains(cat(field.name, ": ", below, " is out of range")));
    CHECK_THAT(faults(cat("\"", field.name, "\": ", above)),
               contains(cat(field.name, ": ", above, " is out of range")));
    const auto at_end = [&](double x) { return faults(cat("\"", field.name, "\": ", shortest(x))); };
    CHECK(!has(at_end(field.low), "out of range"));
    CHECK(has(at_end(field.high), "out of range") == field.high_open);
  }
  for (const char* key : {"dropout", "beta1", "beta2", "val_fraction"})  // cases C6 and D5
    for (const char* value : {"1.0", "-0.1", "1.5"})
      CHECK_THAT(faults(cat("\"", key, "\": ", value)), contains("is out of range; expected a number >= 0 and < 1"));
  for (const char* key : {"n_head", "n_layer", "block_size", "batch_size", "n_embd", "eval_iters"})
    CHECK_THAT(faults(cat("\"", key, "\": 0")), contains("0 is out of range; expected an integer >= 1"));
  for (const char* key : {"eval_interval", "log_interval", "keep_interval", "sample_length", "patience", "max_iters"})
    CHECK(faults(cat("\"", key, "\": 0")) == "");
}

TEST_CASE("null is for keys that have it", "[unit]") {
  for (const Field& field : fields()) {
    const bool nullable = has(expected_text(field), "or null");
    if (std::string(field.name) != "data") CHECK(faults(cat("\"", field.name, "\": null")).empty() == nullable);
  }
  CHECK(faults(R"("init_from": "")") == "c.json:1:28: init_from: \"\" is empty; expected a path or null");
}

TEST_CASE("rules that join keys name both values", "[unit]") {
  CHECK(faults("\"n_embd\": 130") ==
        "c.json:1:25: n_embd: n_embd 130 is not a multiple of n_head 4; head counts that "
        "fit: 1, 2, 5, 10, 13, 26, 65, 130");
  CHECK(message_of([] {
          load_config({}, {{"data", "t"}, {"n_embd", "130"}, {"n_head", "3"}});
        }) ==
        "--n_head: n_embd 130 is not a multiple of n_head 3; head counts that fit: 1, 2, 5, 10, 13, 26, 65, "
        "130");
  CHECK(faults("\"n_embd\": 130, \"n_head\": 0") ==  // a rule waits until its keys are sound
        "c.json:1:40: n_head: 0 is out of range; expected an integer >= 1 and <= 1048576");
  CHECK_THAT(typed_faults("n_embd", "5042"), contains("fit: 1, 2, 2521, 5042"));
  CHECK_THAT(typed_faults("n_embd", "5041"), contains("fit: 1, 71, 5041"));
  CHECK_THAT(message_of([] {
               load_config({}, {{"data", "t"}, {"n_embd", "720"}, {"n_head", "7"}});
             }),
             contains("fit: 1, 2, 3, 4, 5, 6, 8, 9, 10, 12, 15, 16, ..."));
  CHECK(faults("\"min_lr\": 0.01") ==
        "c.json:1:25: min_lr: min_lr 0.01 is above learning_rate 0.001; expected min_lr <= learning_rate");
  CHECK(faults("\"min_lr\": 0.01, \"decay_lr\": false") == "");
  CHECK(faults("\"min_lr\": 0.001") == "");
  const std::string scale =
      "qk_scale_init null means log2(T^2 - T), which has no value for block_size 1; expected a number";
  CHECK(faults("\"block_size\": 1, \"attention\": \"qk_norm\"") == cat("c.json:1:45: attention: ", scale));
  CHECK(faults("\"block_size\": 1, \"attention\": \"qk_norm\", \"qk_scale_init\": 2") == "");
  CHECK(faults("\"block_size\": 1") == "");
  CHECK(faults("\"block_size\": 2, \"attention\": \"qk_norm\"") == "");
  CHECK(faults(R"("max_iters": 2147483647, "batch_size": 1048576, "block_size": 1048576)") ==
        "c.json:1:77: block_size: max_iters x gradient_accumulation_steps x batch_size x block_size is "
        "2.361183240335311e+21 tokens; expected fewer than 4e18");
  CHECK(faults("\"qk_norm_eps\": 1e-12") == "");
  for (const char* eps : {"0", "-1", "1e-50"}) CHECK_THAT(typed_faults("qk_norm_eps", eps), contains("out of range"));
}

TEST_CASE("a text is required unless a config could not be read", "[unit]") {
  CHECK(message_of([] { load_config({}, {}); }) ==
        "data: no text given; expected --data=FILE, or \"data\": \"FILE\" in a config");
  CHECK(message_of([] {
          load_config({}, {{"data", ""}});
        }) == "--data: no text given; expected --data=FILE, or \"data\": \"FILE\" in a config");
  CHECK(!has(faults_of_text("{"), "no text"));
}

TEST_CASE("values typed on the command line", "[unit]") {
  for (const char* same : {"1e-3", ".001", "0.001", "1E-3", "10e-4"})
    CHECK(typed("learning_rate", same).learning_rate == 1e-3);
  CHECK(typed("learning_rate", "1.").learning_rate == 1.0);
  CHECK(typed("learning_rate", "1.e-2").learning_rate == 0.01);
  CHECK(typed("max_iters", "1e3").max_iters == 1000);
  CHECK((typed("bias", "True").bias && typed("bias", "true").bias && !typed("bias", "False").bias));
  CHECK((!typed("min_lr", "None").min_lr && !typed("min_lr", "null").min_lr && !typed("init_from", "None").init_from));
  CHECK(typed("out_dir", "null").out_dir == "null");
  CHECK(typed("data", "my text é \"x\".txt").data == "my text é \"x\".txt");
  CHECK(typed("attention", "qk_norm").attention == Attention::qk_norm);
  for (const char* wrong : {"nan", "inf", "1e-3x", "3e-4x", "", "3,5", " 1", "1 ", "0x10", "+1", "01", ".", "1_0",
                            "[1]", "1}", "/**/1", "1e"})
    CHECK(typed_faults("learning_rate", wrong) ==
          cat("--learning_rate: \"", wrong, "\" is not a number; expected a number >= 0"));
  CHECK(typed_faults("learning_rate", "-1") == "--learning_rate: -1 is out of range; expected a number >= 0");
  CHECK(typed_faults("learning_rate", "1e400") ==
        "--learning_rate: 1e400 is out of range; expected a number >= 0 and <= 1e+30");
  CHECK(typed_faults("max_iters", "0x10") == "--max_iters: \"0x10\" is not an integer; expected an integer >= 0");
  CHECK(typed_faults("bias", "1") == "--bias: 1 is not a truth value; expected true or false");
  CHECK(typed_faults("threads", "-1") == "--threads: -1 is out of range; expected an integer >= 0 and <= 4096");
  CHECK(typed_faults("max_iter", "1") == "--max_iter: unknown key; did you mean --max_iters?");
  CHECK_THAT(typed_faults("data", "a\xFF"), contains("is not UTF-8"));
  CHECK(message_of([] {
          load_config({}, {{"n_layer", "0"}, {"bias", "2"}, {"data", "t"}});
        }) ==
        "--n_layer: 0 is out of range; expected an integer >= 1 and <= 10000\n"
        "--bias: 2 is not a truth value; expected true or false");
}

TEST_CASE("the command line beats the last file and that the first", "[unit]") {
  const Workplace workplace;
  Workplace::write("a.json", R"({"data": "a", "n_layer": 1, "n_head": 1, "bias": true})");
  Workplace::write("b.c.json", R"({"n_layer": 2, "n_head": 2})");
  const Config c = load_config({"a.json", "b.c.json"}, {{"n_layer", "3"}});
  CHECK((c.n_layer == 3 && c.n_head == 2 && c.bias && c.data == "a" && c.n_embd == 128));
  CHECK(c.out_dir == "runs/a+b.c");
  CHECK(load_config({"a.json"}, {{"out_dir", "x"}}).out_dir == "x");
  CHECK(load_config({}, {{"data", "t"}}).out_dir == "runs/default");
  Workplace::write("back.json", to_json(c));
  CHECK(to_json(load_config({"back.json"}, {})) == to_json(c));
}

TEST_CASE("config files that cannot be read are named with the reason", "[unit]") {
  const Workplace workplace;
  std::filesystem::create_directory("dir");
  Workplace::write("model.safetensors", std::string("\x20\0\0\0\0\0\0\0{\"a\": 1}", 16));
  Workplace::write("large.json", "{" + std::string(2 << 20, ' ') + "}");
  Workplace::write("bad.json", "{\"bias\": 1}");
  const std::string hint = " (qkgpt train --resume=FILE goes on from a checkpoint)";
  CHECK(message_of([] {
          load_config({"no.json", "dir", "max_iter=5", "model.safetensors", "large.json", "bad.json"}, {{"bias", "x"}});
        }) == cat("no.json: cannot be read (No such file or directory); expected a config file", hint,
                  "\ndir: is a directory; expected a config file (qkgpt train --resume=dir goes on with a run)",
                  "\nmax_iter=5: cannot be read (No such file or directory); expected a config file (did you mean "
                  "--max_iters=5?)",
                  "\nmodel.safetensors:1:2: not a JSON object; expected {\"key\": value, ...}", hint,
                  "\nlarge.json: larger than 1 MiB; expected a config file", hint,
                  "\nbad.json:1:10: bias: 1 is not a truth value; expected true or false",
                  "\n--bias: \"x\" is not a truth value; expected true or false"));
}
