// Text files, tokenizers by character and byte; malformed files.
#include <doctest/doctest.h>

#include "core/text.h"
#include "models/text/text.h"
#include "models/text/tokenizer.h"
#include "models/text/utf8.h"
#include "tests/temp_dir.h"
#include "tests/tokenizer_checks.h"

using namespace brrr;
using namespace brrr::test;
using data::CounterRng;
using doctest::Contains;
using Ids = std::vector<int64_t>;

TEST_CASE("UTF-8: every code point, and invalid ones") {
  for (char32_t c = 0; c <= 0x10ffff; ++c) {
    std::string s;
    data::append_utf8(s, c);
    const CodePoint back = decode_utf8(s, 0);
    if (c >= 0xd800 && c < 0xe000) {
      REQUIRE_FALSE(back.valid());
    } else {
      REQUIRE((back.value == c && back.length == s.size()));
      if (s.size() > 1) REQUIRE_FALSE(decode_utf8(s.substr(0, s.size() - 1), 0).valid());
    }
  }
  for (const char* bad :
       {"\x80", "\xbf", "\xc0\x80", "\xc1\xbf", "\xe0\x9f\xbf", "\xf0\x8f\xbf\xbf",
        "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff", "\xc3(", "\xe2\x82("}) {
    CHECK_FALSE(decode_utf8(bad, 0).valid());
    CHECK(decode_utf8(bad, 0).length == 1);
  }
}

TEST_CASE("shown: terminal control characters are hidden, the rest is unchanged") {
  CHECK(shown("a\x1b[2J\n\x7f\r") == "a?[2J???");
  CHECK(shown("\xc2\x9bK\u202e\u2066x\u2069") == "?K??x?");
  CHECK(shown("\x9bK\xc3\x1b") == "?K\xc3?");
  CHECK(shown("wörld \u2025\u202f😀\xff") == "wörld \u2025\u202f😀\xff");
  CHECK(shown("abcdef", 3) == "abc...");
  CHECK(shown("\u202e\u202ef", 6) == "??...");
}

// --- characters and bytes ------------------------------------------------------------------------

TEST_CASE("CharTokenizer: the sorted characters of a text") {
  const data::CharTokenizer t("hello, wörld 😀\n");
  CHECK(t.vocab_size() == 12);
  CHECK(t.decode({0, 1, 2, 3, 10, 11}) == "\n ,dö😀");
  CHECK(t.encode("\n ,").size() == 3);
  CHECK(t.encode("ö😀") == Ids{10, 11});
  CHECK(t.encode("").empty());
  check_round_trip(t, "hello 😀 wörld\n");
  check_round_trip(data::CharTokenizer(std::string("a\0b", 3)), std::string("\0ba", 3));
  CHECK_THROWS_WITH_AS(t.encode("hello\tworld"), Contains("U+0009 at offset 5"), Error);
  CHECK_THROWS_WITH_AS(t.encode("\x7f"), Contains("U+007F at offset 0"), Error);
  CHECK_THROWS_WITH_AS(t.encode("\u009b"), Contains("U+009B at offset 0"), Error);
  CHECK_THROWS_WITH_AS(t.encode("\u202e"), Contains("U+202E at offset 0"), Error);
  CHECK_THROWS_WITH_AS(t.encode("hé"), Contains("U+00E9 'é' at offset 1"), Error);
  CHECK_THROWS_WITH_AS(t.encode("he\xff"), Contains("0xff at offset 2"), Error);
  CHECK_THROWS_WITH_AS(t.decode({0, 12}), Contains("id 12 at position 1"), Error);
  CHECK_THROWS_WITH_AS(t.decode({-1}), Contains("id -1"), Error);
  CHECK_THROWS_WITH_AS(data::CharTokenizer("ab\xc3("), Contains("use the byte tokenizer"), Error);
  CHECK_THROWS_WITH_AS(data::CharTokenizer("ab\xc3"), Contains("offset 2"), Error);
  CHECK_THROWS_WITH_AS(data::CharTokenizer(""), Contains("empty"), Error);
}

TEST_CASE("ByteTokenizer takes everything") {
  const data::ByteTokenizer t;
  CHECK(t.encode(std::string("a\0\xff", 3)) == Ids{97, 0, 255});
  CounterRng rng(1, 1);
  check_round_trip(t, random_bytes(rng, 1000));
  CHECK_THROWS_WITH_AS(t.decode({256}), Contains("not in [0, 256)"), Error);
}

// --- state ---------------------------------------------------------------------------------------

TEST_CASE("tokenizer_from_state: an invalid state is an error") {
  const std::string bad[] = {
      "",
      "x",
      "[]",
      "{}",
      "null",
      R"({"tokenizer":3})",
      R"({"tokenizer":"word"})",
      R"({"tokenizer":"char"})",
      R"({"tokenizer":"char","characters":""})",
      R"({"tokenizer":"char","characters":7})",
      R"({"tokenizer":"gpt2"})",
      R"({"tokenizer":"gpt2","tokens":[],"merges":[],"parse_special":false})",
      R"({"tokenizer":"gpt2","tokens":[1],"merges":[],"parse_special":false})",
      std::string(100000, '['),
      "\xff"};
  for (const std::string& state : bad) {
    CAPTURE(state.substr(0, 80));
    CHECK_THROWS_AS(data::tokenizer_from_state(state), Error);
  }
  CHECK_THROWS_WITH_AS(data::tokenizer_from_state("{\"tokenizer\":\"x\\u001b[2J\"}"),
                       Contains("unknown tokenizer \"x?[2J\""), Error);
}

// --- text files ----------------------------------------------------------------------------------

TEST_CASE("load_text: missing, empty and binary files are errors") {
  TemporaryDirectory dir;
  const std::string path = dir.file("a.txt");
  CHECK_THROWS_WITH_AS(data::load_text(path), Contains("a.txt"), Error);
  write(path, "");
  CHECK_THROWS_WITH_AS(data::load_text(path), Contains("a.txt is empty"), Error);
  CHECK_THROWS_WITH_AS(data::load_bytes(path), Contains("a.txt is empty"), Error);
  write(path, std::string("ab\0c", 4));
  CHECK_THROWS_WITH_AS(data::load_text(path), Contains("NUL byte at offset 2"), Error);
  CHECK(data::load_bytes(path).size() == 4);
  write(path, "text\n");
  CHECK(data::load_text(path) == "text\n");
  CHECK_THROWS_AS(data::load_text(dir.path.string()), Error);
  CHECK_THROWS_AS(data::load_text("/dev/zero"), Error);
}

TEST_CASE("load_sources: in order of the path, without build outputs") {
  TemporaryDirectory dir;
  const auto put = [&](const std::string& name, const std::string& text) {
    std::filesystem::create_directories((dir.path / name).parent_path());
    write(dir.file(name), text);
  };
  CHECK_THROWS_WITH_AS(data::load_sources(dir.path.string()), Contains("no file"), Error);
  CHECK_THROWS_WITH_AS(data::load_sources(dir.file("none")), Contains("not a directory"), Error);
  put("b/z.cpp", "2");
  put("b/a.h", "1\n");
  put("b.md", "3\n");
  put("B.md", "0\n");
  put("b/empty.h", "");
  put("b/other.txt", "x");
  for (const char* out : {"build/x.h", "build-old/x.h", "out/x.md", ".git/x.h", "made/x.h"}) {
    put(out, "x");
  }
  put("made/CMakeCache.txt", "x");
  std::filesystem::create_symlink(dir.file("b.md"), dir.file("link.md"));
  std::filesystem::create_directory_symlink(dir.path, dir.path / "b/loop");
  CHECK(data::load_sources(dir.path.string()) == "0\n3\n1\n2\n");
  CHECK(data::load_sources(dir.path.string() + "/") == "0\n3\n1\n2\n");
  CHECK(data::load_sources(dir.path.string(), {".txt"}) == "x\n");
  put("bad.h", std::string("\0", 1));
  CHECK_THROWS_WITH_AS(data::load_sources(dir.path.string()), Contains("bad.h"), Error);
  CHECK(data::load_sources(dir.path.string(), {".h"}, data::load_bytes) ==
        std::string("1\n\0\n", 4));  // b/a.h, then bad.h.
}
