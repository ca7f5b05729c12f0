#include "format/safetensors.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <random>

#include "base/file.h"
#include "base/text.h"
#include "catch.h"
#include "expect_error.h"
#include "format/safetensors_header.h"
#include "format/sha256.h"
#include "temp_dir.h"

using namespace qkgpt;
using qkgpt::test::contains;
using qkgpt::test::error_of;
using qkgpt::test::TempDir;

namespace {

std::string length_prefix(std::uint64_t n) {
  std::string out(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) out[i] = static_cast<char>(n >> (8 * i));
  return out;
}

// Overwrites the last 32 bytes by the digest of those before them.
std::string sealed(std::string file) {
  const Bytes body = as_bytes(std::string_view(file).substr(0, file.size() - 32));
  const Digest digest = sha256(body);
  std::memcpy(file.data() + file.size() - 32, digest.data(), 32);
  return file;
}

std::string file_of(const std::string& json, Index data_size) {
  return sealed(length_prefix(json.size()) + json + std::string(static_cast<std::size_t>(data_size), 'd'));
}

// `entries` describe `data_size` bytes; a right trailer follows.
std::string with_trailer(const std::string& entries, Index data_size) {
  return file_of(cat("{", entries, entries.empty() ? "" : ",",
                     R"("~sha256":{"dtype":"U8","shape":[32],"data_offsets":[)", data_size, ",", data_size + 32, "]}}"),
                 data_size + 32);
}

std::string entry(const std::string& name, const std::string& dtype, const std::string& shape,
                  const std::string& offsets) {
  return cat("\"", name, R"(":{"dtype":")", dtype, R"(","shape":)", shape, R"(,"data_offsets":)", offsets, "}");
}

SafetensorsFile parsed(const std::string& bytes) { return SafetensorsFile::parse(bytes, "x.safetensors", true); }

std::string refusal(const std::string& bytes, bool require_trailer = true) {
  return error_of(ErrorKind::checkpoint, [&] { SafetensorsFile::parse(bytes, "x.safetensors", require_trailer); });
}

const std::vector<float> weights = {1.5f, -2, 0, 3, 4, 5};
const std::vector<double> best = {0.1};
const std::vector<std::int64_t> step = {123456789012345};

template <class T>
Bytes bytes_of(const std::vector<T>& v) {
  return std::as_bytes(std::span(v));
}

std::vector<TensorEntry> sample_tensors() {
  return {{"w", DType::F32, {2, 3}, bytes_of(weights)},
          {"step", DType::I64, {1}, bytes_of(step)},
          {"best", DType::F64, {}, bytes_of(best)},
          {"a", DType::F32, {0, 4}, {}}};
}

std::string sample_file() {
  const TempDir dir;
  write_safetensors(dir / "x", sample_tensors(), {{"format", "pt"}, {"note", "\"\xC3\xA9\"\n"}}, true);
  return read_file(dir / "x");
}

}  // namespace

TEST_CASE("a written file is laid out as the format says, widest first, then by name", "[unit]") {
  const std::string file = sample_file();
  std::string json =
      R"({"__metadata__":{"format":"pt","note":"\")"
      "\xC3\xA9"
      R"(\"\n"},)"
      R"("best":{"dtype":"F64","shape":[],"data_offsets":[0,8]},"step":{"dtype":"I64","shape":[1],"data_offsets":[8,16]},)"
      R"("a":{"dtype":"F32","shape":[0,4],"data_offsets":[16,16]},"w":{"dtype":"F32","shape":[2,3],"data_offsets":[16,40]},)"
      R"("~sha256":{"dtype":"U8","shape":[32],"data_offsets":[40,72]}})";
  json.resize((json.size() + 7) / 8 * 8, ' ');
  std::string expected = length_prefix(json.size()) + json;
  for (const Bytes data : {bytes_of(best), bytes_of(step), bytes_of(weights)}) expected += as_text(data);
  CHECK((file == sealed(expected + std::string(32, '\0'))));
  CHECK(safetensors_size(sample_tensors(), {{"format", "pt"}, {"note", "\"\xC3\xA9\"\n"}}, true) ==
        static_cast<Index>(file.size()));
}

TEST_CASE("a written file reads back and is written again byte for byte", "[unit]") {
  const TempDir dir;
  const std::string file = sample_file();
  const SafetensorsFile read = parsed(file);
  CHECK(read.has_trailer());
  CHECK(read.metadata().at("note") == "\"\xC3\xA9\"\n");
  REQUIRE(read.tensors().size() == 4);
  REQUIRE(read.find("w"));
  CHECK((read.find("w")->shape == std::vector<Index>{2, 3}));
  CHECK((as_text(read.find("w")->data) == as_text(bytes_of(weights))));
  CHECK((as_text(read.find("step")->data) == as_text(bytes_of(step))));
  CHECK(read.find("best")->shape.empty());
  CHECK(read.find("a")->data.empty());
  CHECK_FALSE(read.find("~sha256"));
  CHECK_FALSE(read.find("none"));
  std::vector<TensorEntry> shuffled = read.tensors();
  std::reverse(shuffled.begin(), shuffled.end());
  write_safetensors(dir / "y", shuffled, read.metadata(), true);
  CHECK((read_file(dir / "y") == file));
  write_safetensors(dir / "z", shuffled, {}, false);
  const SafetensorsFile plain = SafetensorsFile::read(dir / "z", false);
  CHECK_FALSE(plain.has_trailer());
  CHECK(plain.tensors().size() == 4);
  CHECK(safetensors_size(shuffled, {}, false) == file_size(dir / "z"));
}

TEST_CASE("the writer refuses what it could not read", "[unit]") {
  const TempDir dir;
  const auto write = [&](std::vector<TensorEntry> tensors) {
    write_safetensors(dir / "x", std::move(tensors), {}, true);
  };
  CHECK_THROWS_AS(write({{"a", DType::F32, {2}, bytes_of(best)}, {"a", DType::F64, {1}, bytes_of(best)}}),
                  std::logic_error);
  CHECK_THROWS_AS(write({{"a", DType::F32, {3}, bytes_of(best)}}), std::logic_error);
  CHECK_THROWS_AS(write({{"__metadata__", DType::F32, {2}, bytes_of(best)}}), std::logic_error);
  CHECK_THROWS_AS(write({{"~sha256", DType::F32, {2}, bytes_of(best)}}), std::logic_error);
  CHECK_THROWS_AS(write({{"~x", DType::U8, {8}, bytes_of(best)}}), std::logic_error);
  CHECK(dir.names().empty());
}

TEST_CASE("legal but unusual files are read", "[unit]") {
  CHECK(parsed(with_trailer("", 0)).tensors().empty());
  CHECK(parsed(with_trailer("\"__metadata__\":{}", 0)).metadata().empty());
  CHECK(SafetensorsFile::parse(length_prefix(2) + "{}", "x", false).tensors().empty());
  CHECK(SafetensorsFile::parse(length_prefix(8) + " \n{\t}\r  ", "x", false).tensors().empty());
  const SafetensorsFile mixed =
      parsed(with_trailer(entry("late", "F32", "[2]", "[4,12]") + "," + entry("", "U8", "[4]", "[0,4]") + "," +
                              entry("zero", "F64", "[0,281474976710655]", "[4,4]") + "," +
                              entry("half", "F4", "[2,3]", "[12,15]") + "," + entry("six", "F6_E2M3", "[4]", "[15,18]"),
                          18));
  REQUIRE(mixed.tensors().size() == 5);
  CHECK(mixed.tensors()[0].name.empty());
  CHECK(mixed.tensors()[1].name == "zero");
  CHECK(mixed.find("late")->data.size() == 8);
  for (const char* name : {"BOOL", "U8",  "I8",  "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ",
                           "I16",  "U16", "F16", "BF16",    "I32",     "U32",     "F32",         "C64",
                           "F64",  "I64", "U64", "F4",      "F6_E2M3", "F6_E3M2"}) {
    INFO(name);
    REQUIRE(dtype_of(name));
    CHECK(std::string(dtype_name(*dtype_of(name))) == name);
    const Index size = 4 * dtype_bits(*dtype_of(name)) / 8;
    CHECK(parsed(with_trailer(entry("t", name, "[4]", cat("[0,", size, "]")), size)).tensors().size() == 1);
  }
  CHECK(dtype_bits(DType::C64) == 64);
  CHECK(dtype_bits(DType::BF16) == 16);
}

TEST_CASE("a header length that the file cannot hold is refused", "[unit]") {
  struct Case {
    std::string file, reason;
  };
  const Case cases[] = {
      {sealed(length_prefix(~std::uint64_t{0}) + std::string(100, ' ')), "length is given as 18446744073709551615"},
      {sealed(length_prefix(~std::uint64_t{0} - 7) + std::string(100, ' ')), "length is given as"},
      {sealed(length_prefix(std::uint64_t{1} << 60) + std::string(100, ' ')), "length is given as"},
      {sealed(length_prefix(101) + std::string(100, ' ')), "length is given as 101 in a file of 108 bytes"},
      {sealed(length_prefix(100'000'001) + std::string(100, ' ')), "length is given as"},
      {file_of("{}" + std::string(max_header_size - 1, ' '), 32), "too long"},
      {std::string(7, ' '), "7 bytes has no header"},
  };
  const TempDir dir;
  for (const Case& c : cases) {
    CHECK_THAT(refusal(c.file),
               contains("x.safetensors: damaged, or no safetensors file at all") && contains(c.reason));
    std::ofstream(dir / "x", std::ios::binary) << c.file;
    CHECK_THAT(error_of(ErrorKind::checkpoint, [&] { SafetensorsFile::read(dir / "x", true); }), contains(c.reason));
  }
}

TEST_CASE("a header that breaks a rule is refused though its checksum is right", "[unit]") {
  const std::string a = entry("a", "U8", "[4]", "[0,4]");
  const auto one = [](const std::string& dtype, const std::string& shape, const std::string& offsets) {
    return with_trailer(entry("a", dtype, shape, offsets), 8);
  };
  std::string many = "{";
  for (int i = 0; i <= max_tensors; ++i) many += cat(i ? "," : "", entry(std::to_string(i), "U8", "[0]", "[0,0]"));
  std::string keys = "\"__metadata__\":{";
  for (int i = 0; i <= max_tensors; ++i) keys += cat(i ? "," : "", "\"", i, "\":\"\"");
  const std::string ones = [] {
    std::string s = "[1";
    for (int i = 0; i < 64; ++i) s += ",1";
    return s + "]";
  }();
  struct Case {
    std::string file, reason;
  };
  const Case cases[] = {
      {sealed(length_prefix(0) + std::string(100, ' ')), "not a JSON object"},
      {file_of("[]", 32), "not a JSON object"},
      {file_of("7", 32), "not a JSON object"},
      {file_of("\xEF\xBB\xBF{}", 32), "not a JSON object"},
      {file_of("{", 32), "not JSON"},
      {file_of("{}x", 32), "not JSON"},
      {file_of("{}{}", 32), "not JSON"},
      {file_of(std::string("{}\0}", 4), 32), "zero byte"},
      {file_of("{,}", 32), "not JSON"},
      {with_trailer(entry("\xFF", "U8", "[0]", "[0,0]"), 0), "not JSON"},
      {with_trailer("\"a\":[0]", 0), "an array where"},
      {with_trailer("\"a\":null", 0), "null where"},
      {with_trailer("\"a\":\"b\"", 0), "a string where"},
      {with_trailer("\"a\":1", 0), "a number where"},
      {with_trailer("\"a\":{}", 0), "missing in 'a'"},
      {with_trailer(R"("a":{"dtype":"U8","shape":[0]})", 0), "missing in 'a'"},
      {with_trailer(R"("a":{"dtype":"U8","data_offsets":[0,0]})", 0), "missing in 'a'"},
      {with_trailer(R"("a":{"shape":[0],"data_offsets":[0,0]})", 0), "missing in 'a'"},
      {with_trailer(R"("a":{"dtype":"U8","shape":[0],"data_offsets":[0,0],"more":1})", 0), "unknown field 'more'"},
      {with_trailer(R"("a":{"dtype":"U8","shape":[0],"data_offsets":[0,0],"shape":[0]})", 0),
       "shape occurs twice in 'a'"},
      {with_trailer(R"("a":{"dtype":{},"shape":[0],"data_offsets":[0,0]})", 0), "an object where"},
      {with_trailer(R"("a":{"dtype":"U8","shape":{},"data_offsets":[0,0]})", 0), "an object where"},
      {one("F31", "[2]", "[0,8]"), "unknown dtype 'F31' in 'a'"},
      {one("f32", "[2]", "[0,8]"), "unknown dtype"},
      {one("F32", "2", "[0,8]"), "a number where"},
      {one("F32", "[2.0]", "[0,8]"), "no integer"},
      {one("F32", "[2e0]", "[0,8]"), "no integer"},
      {one("F32", "[-2]", "[0,8]"), "a negative number"},
      {one("F32", "[true]", "[0,8]"), "a boolean"},
      {one("F32", "[\"2\"]", "[0,8]"), "a string where"},
      {one("F32", "[[2]]", "[0,8]"), "an array where"},
      {one("F32", ones, "[0,8]"), "too many dimensions"},
      {one("F32", std::string(100'000, '['), "[0,8]"), "an array where"},
      {file_of(cat("{\"a\":", std::string(100'000, '[')), 32), "an array where"},
      {file_of(std::string(100'000, '{'), 32), "not JSON"},
      {one("F32", "[4611686018427387904]", "[0,8]"), "no size in bytes"},
      {one("F32", "[281474976710656]", "[0,8]"), "no size in bytes"},
      {one("F32", "[18446744073709551615]", "[0,8]"), "beyond 2^63"},
      {one("F32", "[18446744073709551616]", "[0,8]"), "no integer"},
      {one("F32", "[4294967296,4294967296]", "[0,8]"), "no size in bytes"},
      {one("F64", "[72057594037927936,256,0]", "[0,0]"), "no size in bytes"},
      {one("F4", "[15]", "[0,8]"), "no size in bytes"},
      {one("F32", "[3]", "[0,8]"), "needs 12 bytes, not 8"},
      {one("F32", "[2]", "[0]"), "two numbers"},
      {one("F32", "[2]", "[]"), "two numbers"},
      {one("F32", "[2]", "[0,8,8]"), "two numbers"},
      {one("F32", "[2]", "[8,0]"), "does not lie within"},
      {one("F32", "[2]", "[-8,0]"), "a negative number"},
      {one("F32", "[2]", "[0,48]"), "does not lie within"},
      {one("F32", "[2]", "[0,9223372036854775807]"), "does not lie within"},
      {one("F32", "[1]", "[4,8]"), "gap or an overlap before 'a'"},
      {one("F32", "[1]", "[0,4]"), "gap or an overlap before '~sha256'"},
      {with_trailer(a + "," + entry("b", "U8", "[4]", "[2,6]"), 6), "gap or an overlap before 'b'"},
      {with_trailer(a + "," + entry("b", "U8", "[4]", "[0,4]"), 4), "gap or an overlap before 'b'"},
      {with_trailer(a + "," + entry("b", "U8", "[4]", "[5,9]"), 9), "gap or an overlap before 'b'"},
      {with_trailer(a + "," + a, 4), "'a' occurs twice"},
      {with_trailer(R"("__metadata__":{},"__metadata__":{})", 0), "'__metadata__' occurs twice"},
      {with_trailer(R"("__metadata__":{"a":"b","a":"b"})", 0), "metadata key 'a' occurs twice"},
      {with_trailer(R"("__metadata__":{"a":1})", 0), "a number where"},
      {with_trailer(R"("__metadata__":{"a":{}})", 0), "an object where"},
      {with_trailer(R"("__metadata__":{"a":null})", 0), "null where"},
      {with_trailer(R"("__metadata__":null)", 0), "null where"},
      {with_trailer(R"("__metadata__":"a")", 0), "a string where"},
      {file_of(R"({"~sha256":{"dtype":"U8","shape":[32],"data_offsets":[0,32]}})", 33),
       "1 bytes follow the last tensor"},
      {file_of(many + "}", 32), "more than 50000 tensors"},
      {with_trailer(keys + "}", 0), "too many metadata keys"},
  };
  for (const Case& c : cases) {
    INFO(c.file.substr(0, 200));
    CHECK_THAT(refusal(c.file), contains("x.safetensors: not a valid safetensors file, though its checksum is right") &&
                                    contains(c.reason));
  }
}

TEST_CASE("a checksum entry in the wrong place or form is refused", "[unit]") {
  const std::string end = R"("~sha256":{"dtype":"U8","shape":[32],"data_offsets":[0,32]})";
  for (const std::string& file : {file_of(cat("{", end, ",", entry("a", "U8", "[32]", "[32,64]"), "}"), 64),
                                  file_of(cat("{", entry("~sha256", "I8", "[32]", "[0,32]"), "}"), 32),
                                  file_of(cat("{", entry("~sha256", "U8", "[4,8]", "[0,32]"), "}"), 32),
                                  file_of(cat("{", entry("~sha256", "U8", "[33]", "[0,33]"), "}"), 33)}) {
    CHECK_THAT(refusal(file), contains("its ~sha256 entry is not the last tensor, U8 [32]"));
    CHECK_THAT(refusal(file, false), contains("its ~sha256 entry is not the last tensor, U8 [32]"));
  }
}

TEST_CASE("damaged, foreign, pickled and absent files are told apart", "[unit]") {
  const std::string file = sample_file();
  std::string bad = file;
  bad[file.size() - 40] ^= 1;
  CHECK_THAT(refusal(bad), contains("x.safetensors: damaged: its content does not match its checksum"));
  CHECK_THAT(refusal(bad, false), contains("does not match its checksum"));  // verified where it is there
  CHECK_THAT(refusal(""), contains("x.safetensors: damaged") && contains("0 bytes"));
  const std::string json = cat("{", entry("a", "F32", "[10]", "[0,40]"), "}");
  const std::string foreign = length_prefix(json.size()) + json;
  CHECK_THAT(refusal(foreign + std::string(40, 'd')), contains("not a checkpoint of qkgpt") && !contains("damaged"));
  CHECK_THAT(refusal(sealed(foreign + std::string(40, 'd'))), contains("not a checkpoint of qkgpt"));
  CHECK(SafetensorsFile::parse(foreign + std::string(40, 'd'), "x", false).find("a"));
  CHECK_THAT(refusal(std::string("PK\x03\x04\0\0\x08\x08", 8) + std::string(1000, 'z')),
             contains("pickle files are not read"));
  for (const char protocol : {'\2', '\4'}) {
    const std::string pickle = std::string("\x80") + protocol + "}q\x01X\x05..." + std::string(1000, 'z');
    CHECK_THAT(refusal(pickle), contains("PyTorch pickle files are not read"));
    CHECK_THAT(refusal(pickle, false), contains("PyTorch pickle files are not read"));
  }
  std::string like_pickle = with_trailer(cat("\"__metadata__\":{\"a\":\"", std::string(640 - 85, 'x'), "\"}"), 0);
  REQUIRE(like_pickle.substr(0, 3) == std::string("\x80\x02\0", 3));  // a header of 640 bytes
  like_pickle[7] = 1;
  CHECK_THAT(refusal(like_pickle), contains("damaged"));
  CHECK_THAT(error_of(ErrorKind::usage, [] { SafetensorsFile::read("/none/x", true); }),
             contains("/none/x: cannot be read"));
  CHECK_THAT(error_of(ErrorKind::usage, [] { SafetensorsFile::read("/", true); }), contains("directory"));
}

TEST_CASE("a file cut at any length or with any bit flipped is refused as damaged", "[unit]") {
  const std::string file = sample_file();
  REQUIRE_NOTHROW(parsed(file));
  for (std::size_t n = 0; n < file.size(); ++n) {
    INFO("cut to " << n << " bytes");
    const std::string message = refusal(file.substr(0, n));
    if (message.find("x.safetensors: damaged") != 0) FAIL(message);
  }
  for (std::size_t bit = 0; bit < 8 * file.size(); ++bit) {
    INFO("bit " << bit << " flipped");
    std::string bad = file;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << (bit % 8)));
    const std::string message = refusal(bad);
    if (message.find("x.safetensors: damaged") != 0) FAIL(message);
  }
  std::printf("damaged files: %zu cuts, %zu bits flipped\n", file.size(), 8 * file.size());
}

TEST_CASE("no mutation of a header with its checksum redone crashes the reader", "[unit]") {
  const std::string file = sample_file();
  std::mt19937 random(7);
  int accepted = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string bad = file;
    for (std::size_t n = 1 + random() % 3; n > 0; --n) {
      const std::size_t at = random() % (file.size() - 32);
      bad[at] = random() % 2 ? static_cast<char>(random()) : "{}[]\",:0123456789"[random() % 17];
    }
    try {
      const SafetensorsFile read = parsed(sealed(bad));
      for (const TensorEntry& t : read.tensors())
        REQUIRE(byte_size(t.dtype, t.shape) == static_cast<Index>(t.data.size()));
      ++accepted;
    } catch (const Error& e) {
      REQUIRE(e.kind() == ErrorKind::checkpoint);
    }
  }
  CHECK(accepted > 0);
}
