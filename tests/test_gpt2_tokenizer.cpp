// GPT-2's tokenizer: against an independent implementation, and with hostile files.
#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <map>

#include <nlohmann/json.hpp>

#include "models/text/gpt2_split.h"
#include "models/text/gpt2_tokenizer.h"
#include "models/safetensors.h"
#include "models/text/utf8.h"
#include "tests/sanitizer.h"
#include "tests/temp_dir.h"
#include "tests/tokenizer_checks.h"

using namespace brrr;
using namespace brrr::test;
using data::CounterRng;
using data::GPT2Tokenizer;
using doctest::Contains;
using nlohmann::json;
using Ids = std::vector<int64_t>;

namespace {

// A vocabulary of the 256 bytes, in the order of the published one, and the tokens made by merges.
struct Vocabulary {
  std::vector<std::string> tokens;
  std::string merges = "#version: 0.2\n";
  TemporaryDirectory dir;

  Vocabulary() {
    int next = 256;
    std::vector<std::string> hidden;
    for (int b = 0; b < 256; ++b) {
      std::string s;
      const bool itself = (b >= '!' && b <= '~') || (b >= 0xa1 && b != 0xad);
      data::append_utf8(s, static_cast<char32_t>(itself ? b : next++));
      (itself ? tokens : hidden).push_back(s);
    }
    tokens.insert(tokens.end(), hidden.begin(), hidden.end());
  }
  void merge(const std::string& left, const std::string& right) {
    tokens.push_back(left + right);
    merges += left + " " + right + "\n";
  }
  json vocab() const {
    json v = json::object();
    for (size_t i = 0; i < tokens.size(); ++i) v[tokens[i]] = i;
    return v;
  }
  GPT2Tokenizer make(const std::string& vocab_text, const std::string& merges_text,
                     data::GPT2TokenizerOptions options = {}) const {
    write(dir.file("vocab.json"), vocab_text);
    write(dir.file("merges.txt"), merges_text);
    return GPT2Tokenizer(dir.file("vocab.json"), dir.file("merges.txt"), options);
  }
  GPT2Tokenizer make(data::GPT2TokenizerOptions options = {}) const {
    return make(vocab().dump(), merges, options);
  }
};

Vocabulary small() {
  Vocabulary v;
  v.merge("h", "e");
  v.merge("l", "l");
  v.merge("he", "ll");
  v.merge("Ġ", "hell");
  v.tokens.push_back("<|endoftext|>");
  return v;
}

}  // namespace

TEST_CASE("GPT-2: pieces") {
  const auto pieces = [](std::string_view text) {
    std::vector<std::string> all;
    for (size_t at = 0; at < text.size();) {
      const size_t end = data::gpt2_piece_end(text, at);
      all.emplace_back(text.substr(at, end - at));
      at = end;
    }
    return all;
  };
  using List = std::vector<std::string>;
  CHECK(pieces("I'll say we're 2024-ready!") ==
        List{"I", "'ll", " say", " we", "'re", " 2024", "-", "ready", "!"});
  CHECK(pieces("  two\n\n three \t") == List{" ", " two", "\n\n", " three", " \t"});
  CHECK(pieces("a\tb '' 'S") == List{"a", "\t", "b", " ''", " '", "S"});
  CHECK(pieces("naïve Ⅷ²\u00a0日本") == List{"naïve", " Ⅷ²", "\u00a0", "日本"});
  CHECK(pieces("a\xff\xfe\x80z") == List{"a", "\xff\xfe\x80", "z"});
}

TEST_CASE("GPT-2: the ids of an independent implementation (gpt2_golden.py)") {
  const json golden = json::parse(read(BRRR_SOURCE_DIR "/tests/gpt2_golden.json"));
  Vocabulary v;
  v.tokens = golden["tokens"].get<std::vector<std::string>>();
  for (const json& m : golden["merges"]) v.merges += m.get<std::string>() + "\n";
  const GPT2Tokenizer t = v.make();
  CHECK(t.vocab_size() == 457);
  CHECK(t.end_of_text() == 456);
  std::string all;
  for (const json& c : golden["cases"]) {
    const auto text = c["text"].get<std::string>();
    CAPTURE(text);
    CHECK(t.encode(text) == c["ids"].get<Ids>());
    CHECK(t.decode(c["ids"].get<Ids>()) == text);
    all += text;
  }
  check_round_trip(t, all);
}

TEST_CASE("GPT-2: any bytes survive, the special token only on request") {
  const Vocabulary v = small();
  const GPT2Tokenizer t = v.make(), special = v.make({.parse_special = true});
  CHECK(t.encode("hell hell") == Ids{258, 259});
  CounterRng rng(2, 1);
  for (int i = 0; i < 50; ++i) check_round_trip(t, random_bytes(rng, rng.below(60)));
  for (int i = 0; i < 50; ++i)
    check_round_trip(t, random_bytes(rng, rng.below(60), "hel 'l\n\xc3"));
  const std::string text = "hell<|endoftext|><|endoftext|> hell<|end";
  const Ids parsed = special.encode(text);
  CHECK(Ids(parsed.begin(), parsed.begin() + 4) == Ids{258, 260, 260, 259});
  CHECK(special.decode(Ids(parsed.begin() + 4, parsed.end())) == "<|end");
  const Ids plain = t.encode(text);
  CHECK(std::count(plain.begin(), plain.end(), 260) == 0);
  check_round_trip(special, text);
  CHECK_THROWS_WITH_AS(t.decode({3, 261}), Contains("id 261 at position 1"), Error);
}

// The published loop, unchanged: merges the pair of lowest rank everywhere, and repeats.
static std::vector<std::string> merge_naively(
    std::vector<std::string> word,
    const std::map<std::pair<std::string, std::string>, size_t>& ranks) {
  for (;;) {
    size_t best = ranks.size();
    std::pair<std::string, std::string> pair;
    for (size_t i = 0; i + 1 < word.size(); ++i) {
      const auto it = ranks.find({word[i], word[i + 1]});
      if (it != ranks.end() && it->second < best) best = it->second, pair = it->first;
    }
    if (best == ranks.size()) return word;
    std::vector<std::string> next;
    for (size_t i = 0; i < word.size(); ++i) {
      const bool hit = i + 1 < word.size() && word[i] == pair.first && word[i + 1] == pair.second;
      next.push_back(hit ? word[i] + word[i + 1] : word[i]);
      i += hit;
    }
    word = next;
  }
}

TEST_CASE("GPT-2: merges in any order give what the published loop gives") {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    CounterRng rng(seed, 3);
    Vocabulary v;
    // Merges of random tokens over three letters, listed in random order: a token may be used by a
    // merge of lower rank than the one that makes it.
    std::vector<std::string> parts = {"a", "b", "c"};
    std::vector<std::pair<std::string, std::string>> pairs;
    while (pairs.size() < 14) {
      const std::string l = parts[rng.below(parts.size())], r = parts[rng.below(parts.size())];
      if (std::count(pairs.begin(), pairs.end(), std::pair(l, r)) || l.size() + r.size() > 6)
        continue;
      pairs.emplace_back(l, r);
      if (!std::count(parts.begin(), parts.end(), l + r)) parts.push_back(l + r);
    }
    for (size_t i = pairs.size(); i > 1; --i) std::swap(pairs[i - 1], pairs[rng.below(i)]);
    std::map<std::pair<std::string, std::string>, size_t> ranks;
    for (const auto& [l, r] : pairs) {
      ranks.emplace(std::pair(l, r), ranks.size());
      v.merges += l + " " + r + "\n";
    }
    v.tokens.insert(v.tokens.end(), parts.begin() + 3, parts.end());
    const GPT2Tokenizer t = v.make();
    for (int i = 0; i < 30; ++i) {
      const std::string word = random_bytes(rng, 1 + rng.below(30), "abc");
      std::vector<std::string> letters;
      for (char c : word) letters.emplace_back(1, c);
      std::vector<std::string> got;
      for (int64_t id : t.encode(word)) got.push_back(t.decode({id}));
      CHECK(got == merge_naively(letters, ranks));
    }
  }
}

TEST_CASE("GPT-2: a piece of a megabyte") {
  const GPT2Tokenizer t = small().make();
  // Quadratic time would be 10^11 steps.
  const std::string word(kAddressSanitizer || kThreadSanitizer ? 100'000 : 1'000'000, 'l');
  CHECK(t.encode(word) == Ids(word.size() / 2, 257));
}

TEST_CASE("GPT-2: malformed files give errors that name file and line") {
  const Vocabulary v = small();
  const auto with = [&](const std::function<void(json&)>& change) {
    json vocab = v.vocab();
    change(vocab);
    return vocab.dump();
  };
  const std::string good = v.vocab().dump(), first = "#version: 0.2\n";
  struct Case {
    std::string vocab, merges;
    const char* expected;
  };
  const std::string end = good.substr(0, good.size() - 1);
  const Case cases[] = {
      {"", v.merges, "vocab.json is empty"},
      {"{", v.merges, "not JSON"},
      {"[]", v.merges, "not an object"},
      {"3", v.merges, "not an object"},
      {"{}", v.merges, "no token for the byte 0x00"},
      {good + "x", v.merges, "not JSON"},
      {good.substr(0, good.size() / 2), v.merges, "not JSON"},
      {"{\"\xff\":1}", v.merges, "not JSON"},
      {std::string("{\"a\0\":1}", 8), v.merges, "NUL"},
      {"{" + std::string(100000, '['), v.merges, "not JSON"},
      {R"({"a":)" + std::string(100000, '['), v.merges, "nests"},
      {R"({"a":{"b":1}})", v.merges, "nests"},
      {end + ",\"he\":300}", v.merges, "\"he\" appears twice"},
      {with([](json& j) { j["he"] = 257; }), v.merges, "have the same id 257"},
      {with([](json& j) { j["he"] = 400; }), v.merges, "the id 400 of the token \"he\""},
      {with([](json& j) { j["he"] = -1; }), v.merges, "the id -1"},
      {with([](json& j) { j["he"] = 1.5; }), v.merges, "the id 1.5"},
      {with([](json& j) { j["he"] = "x"; }), v.merges, "the id \"x\""},
      {with([](json& j) { j["日"] = 261; }), v.merges, "not in GPT-2's alphabet"},
      {with([](json& j) { j["a b"] = 261; }), v.merges, "not in GPT-2's alphabet"},
      {with([](json& j) { j[""] = 261; }), v.merges, "id 261 is empty"},
      {with([](json& j) { j.erase("<|endoftext|>"), j.erase("Ā"), j["qq"] = 188, j["pp"] = 260; }),
       v.merges, "no token for the byte 0x00"},
      {with([](json& j) { j.erase("he"), j["qq"] = 256; }), v.merges,
       "line 2: \"h\" and \"e\" make"},
      {with([](json& j) { j["qq"] = 261; }), v.merges, "none of the 4 merges makes"},
      {good, "", "merges.txt is empty"},
      {good, first, "none of the 0 merges makes"},
      {good, first + "h e\nl l\nhe ll\n", "token \"Ġhell\" (id 259): cut off"},
      {good, v.merges.substr(0, v.merges.size() - 3), "line 5"},
      {good, first + "h e\nhell l\n", "line 3: \"hell\" and \"l\" make \"helll\""},
      {good, first + "h e\nh zz\n", "line 3: \"zz\" is not in the vocabulary"},
      {good, first + "h e\nh e\n", "line 3: \"h\" and \"e\" were merged before"},
      {good, first + "h e l\n", "line 2: not two tokens"},
      {good, first + "he\n", "line 2: not two tokens"},
      {good, first + " he\n", "line 2: not two tokens"},
      {good, first + "h \n", "line 2: not two tokens"},
      {good, first + "h e\n\nl l\n", "line 3: not two tokens"},
      {good, first + "h \xff\n", "line 2: the token"},
      {good, first + std::string("h\0e\n", 4), "NUL"},
      {v.merges, good, "vocab.json: not JSON"},
  };
  for (const Case& c : cases) {
    CAPTURE(c.expected);
    const std::string text = error_of([&] { v.make(c.vocab, c.merges); });
    CAPTURE(text);
    CHECK(text.find(c.expected) != std::string::npos);
    const bool names = text.find("vocab.json") != text.npos || text.find("merges.txt") != text.npos;
    CHECK(names);
  }
  CHECK_THROWS_AS(GPT2Tokenizer(v.dir.file("none"), v.dir.file("merges.txt")), Error);
  CHECK_THROWS_AS(GPT2Tokenizer(v.dir.path.string(), v.dir.file("merges.txt")), Error);
  // Differences of form only are accepted: no version line, Windows line ends, no final line end.
  std::string windows;
  for (char c : v.merges) windows += c == '\n' ? "\r\n" : std::string(1, c);
  for (const std::string& merges :
       {v.merges.substr(first.size()), windows, v.merges.substr(0, v.merges.size() - 1)}) {
    CHECK(v.make(good, merges).encode("hell hell") == Ids{258, 259});
  }
}

TEST_CASE("GPT-2: no cut and no changed byte of its files crashes the reader") {
  const Vocabulary v = small();
  const std::string good = v.vocab().dump();
  CounterRng rng(4, 1);
  const auto attempt = [&](const std::string& vocab, const std::string& merges) {
    try {
      const GPT2Tokenizer t = v.make(vocab, merges);
      CHECK(t.decode(t.encode("hell oh hell")) == "hell oh hell");
    } catch (const Error&) {}
  };
  const auto changed = [&](std::string s) {
    for (uint64_t k = rng.below(3); k < 3; ++k)
      s[rng.below(s.size())] = static_cast<char>(rng.next());
    return s;
  };
  for (int i = 0; i < random_cases(60, 5000); ++i) {
    attempt(good, changed(v.merges));
    attempt(changed(good), v.merges);
    attempt(good.substr(0, rng.below(good.size())), v.merges);
    attempt(good, v.merges.substr(0, rng.below(v.merges.size())));
    attempt(good, random_bytes(rng, rng.below(60), "hel \n#\r"));
    attempt(random_bytes(rng, rng.below(60)), random_bytes(rng, rng.below(60)));
    attempt(random_bytes(rng, rng.below(60), "{}[]\":,01he"), v.merges);
  }
}

// --- state ---------------------------------------------------------------------------------------

TEST_CASE("tokenizers are stored in a checkpoint's metadata") {
  TemporaryDirectory dir;
  const std::string path = dir.file("model.safetensors"), text = "hello <|endoftext|> hell";
  const GPT2Tokenizer gpt2 = small().make({.parse_special = true});
  const data::CharTokenizer characters(text);
  for (const data::Tokenizer* t : {static_cast<const data::Tokenizer*>(&gpt2),
                                   static_cast<const data::Tokenizer*>(&characters)}) {
    save(path, {}, {{"tokenizer", t->state()}});
    Metadata metadata;
    load(path, metadata);
    const auto back = data::tokenizer_from_state(metadata.at("tokenizer"));
    CHECK(back->encode(text) == t->encode(text));
    CHECK(back->decode(back->encode(text)) == text);
  }
}

TEST_CASE("GPT-2: a state that was changed is an error") {
  const json good = json::parse(small().make().state());
  const std::pair<const char*, json> changes[] = {{"merges", "h"},
                                                  {"merges", "h zz\n"},
                                                  {"merges", "a b\n"},
                                                  {"merges", ""},
                                                  {"merges", json::array()},
                                                  {"parse_special", 1},
                                                  {"vocabulary", R"({"a": 0, "a": 1, "": 2})"},
                                                  {"vocabulary", json::object()}};
  for (const auto& [key, value] : changes) {
    json state = good;
    state[key] = value;
    CHECK_THROWS_AS(data::tokenizer_from_state(state.dump()), Error);
  }
}

TEST_CASE("GPT-2: a tokenizer that has been moved from says so") {
  GPT2Tokenizer t = small().make();
  const GPT2Tokenizer now = std::move(t);
  const std::function<void()> uses[] = {[&] { t.vocab_size(); }, [&] { t.end_of_text(); },
                                        [&] { t.encode("hell"); }, [&] { t.decode({}); },
                                        [&] { t.state(); }};
  for (const auto& use : uses) {
    CHECK_THROWS_WITH_AS(use(), Contains("GPT2Tokenizer: this object has been moved from"), Error);
  }
  CHECK(now.encode("hell") == Ids{258});
}
