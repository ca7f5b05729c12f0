#include "format/sha256.h"

#include <vector>

#include "base/crc32.h"
#include "catch.h"

using namespace qkgpt;

namespace {
std::string sha256_hex(std::string_view s) { return hex(sha256(as_bytes(s))); }
}  // namespace

TEST_CASE("SHA-256 gives the vectors of FIPS 180", "[unit]") {
  CHECK(sha256_hex("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(sha256_hex("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(sha256_hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq") ==
        "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  CHECK(sha256_hex("abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqrlmnopqrs"
                   "mnopqrstnopqrstu") == "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1");
  CHECK(sha256_hex(std::string(1000000, 'a')) == "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST_CASE("SHA-256 pads rightly around the block size", "[unit]") {  // from Python's hashlib
  CHECK(sha256_hex(std::string(55, 'a')) == "9f4390f8d30c2dd92ec9f095b65e2b9ae9b0a925a5258e241c9f1e910f734318");
  CHECK(sha256_hex(std::string(56, 'a')) == "b35439a4ac6f0948b6d6f9e3c6af0f5f590ce20f1bde7090ef7970686ec6738a");
  CHECK(sha256_hex(std::string(63, 'a')) == "7d3e74a05d7db15bce4ad9ec0658ea98e3f06eeecf16b4c6fff2da457ddc2f34");
  CHECK(sha256_hex(std::string(64, 'a')) == "ffe054fe7ae0cb6dc65c3af9b61d5209f439851db43d0ba5997337df154668eb");
  CHECK(sha256_hex(std::string(119, 'a')) == "31eba51c313a5c08226adf18d4a359cfdfd8d2e816b13f4af952f7ea6584dcfb");
}

TEST_CASE("SHA-256 does not depend on how the bytes are cut, and can be asked on the way", "[unit]") {
  std::string text;
  for (int i = 0; i < 300; ++i) text += static_cast<char>(i * 7);
  for (std::size_t cut = 0; cut <= text.size(); ++cut) {
    Sha256 hash;
    hash.update(as_bytes(std::string_view(text).substr(0, cut)));
    const Digest before = hash.digest();
    hash.update(as_bytes(std::string_view(text).substr(cut)));
    REQUIRE(hex(before) == sha256_hex(text.substr(0, cut)));
    REQUIRE(hex(hash.digest()) == sha256_hex(text));
  }
}

TEST_CASE("CRC-32 is zlib's", "[unit]") {
  CHECK(crc32(as_bytes("123456789")) == 0xcbf43926);
  CHECK(crc32(as_bytes("")) == 0);
  std::string all;
  for (int i = 0; i < 256; ++i) all += static_cast<char>(i);
  CHECK(crc32(as_bytes(all)) == 0x29058c73);
  CHECK(crc32(as_bytes(all.substr(100)), crc32(as_bytes(all.substr(0, 100)))) == 0x29058c73);
}
