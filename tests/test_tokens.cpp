// Token arrays and files, data sets of windows; malformed files.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <numeric>
#include <set>

#include <brrr/brrr.h>
#include <fmt/format.h>

#include "backends/cpu/allocator.h"
#include "models/counter_rng.h"
#include "models/file.h"
#include "tests/sanitizer.h"
#include "tests/temp_dir.h"

using namespace brrr;
using namespace brrr::test;
using data::TokenDataset;
using data::TokenFormat;
using data::Tokens;
using doctest::Contains;
using Ids = std::vector<int64_t>;

namespace {

Ids counting(int64_t n, int64_t first = 0) {
  Ids ids(static_cast<size_t>(n));
  std::iota(ids.begin(), ids.end(), first);
  return ids;
}

// A llm.c file with this header and `tokens` zero tokens.
std::string llm_c(int32_t magic, int32_t version, int32_t count, size_t tokens) {
  std::string s(1024 + 2 * tokens, '\0');
  const int32_t header[] = {magic, version, count};
  std::memcpy(s.data(), header, sizeof header);
  return s;
}

bool same(const Tensor& a, const Tensor& b) {
  return a.sizes() == b.sizes() && a.to_vector<int64_t>() == b.to_vector<int64_t>();
}

}  // namespace

// --- token arrays and files ----------------------------------------------------------------------

TEST_CASE("token files: both formats come back") {
  TemporaryDirectory dir;
  const std::string path = dir.file("train.bin");
  const Ids ids = {0, 1, 65535, 50256, 7};
  data::write_tokens(path, ids);
  CHECK(read(path).size() == 1024 + 10);
  CHECK(read(path).substr(0, 12) == std::string("\x88\xd8\x34\x01\1\0\0\0\5\0\0\0", 12));
  CHECK(read(path).substr(1024) == std::string("\0\0\1\0\xff\xff\x50\xc4\7\0", 10));
  CHECK(data::map_tokens(path).to_vector() == ids);
  data::write_tokens(path, ids, TokenFormat::NanoGPT);
  CHECK(read(path) == std::string("\0\0\1\0\xff\xff\x50\xc4\7\0", 10));
  const Tokens tokens = data::map_tokens(path);
  CHECK(tokens.to_vector() == ids);
  CHECK(tokens.slice(1, 3).slice(1, 2).to_vector() == Ids{65535, 50256});
  CHECK(tokens.what() == path);
  CHECK(dir.count() == 1);
  for (const Tokens& t : {tokens, Tokens(ids)}) {
    CHECK(t.slice(5, 0).to_vector().empty());
    CHECK_THROWS_AS(t.slice(3, 3), Error);
    CHECK_THROWS_AS(t.slice(-1, 1), Error);
    CHECK_THROWS_AS(t.slice(1, INT64_MAX), Error);
    int64_t to = 0;
    CHECK_THROWS_AS(t.copy(5, 1, &to), Error);
    CHECK(data::check_tokens(t, 65536) == data::check_tokens(Tokens(ids), 65536));
    CHECK_THROWS_WITH_AS(data::check_tokens(t, 50257), Contains("token 65535 at position 2"),
                         Error);
  }
  CHECK(Tokens().to_vector().empty());
}

TEST_CASE("token files: ids that cannot be written are an error and change nothing") {
  TemporaryDirectory dir;
  const std::string path = dir.file("t.bin");
  CHECK_THROWS_WITH_AS(data::write_tokens(path, {}), Contains("no tokens"), Error);
  CHECK_THROWS_WITH_AS(data::write_tokens(path, {1, 65536}), Contains("at position 1"), Error);
  CHECK_THROWS_WITH_AS(data::write_tokens(path, {-1}), Contains("id -1"), Error);
  const Ids magic = {20240520 & 0xffff, 20240520 >> 16};
  const Ids wide = {20240801 & 0xffff, 20240801 >> 16, 1};
  for (const Ids& ids : {magic, wide}) {
    CHECK_THROWS_WITH_AS(data::write_tokens(path, ids, TokenFormat::NanoGPT), Contains("magic"),
                         Error);
  }
  CHECK(dir.count() == 0);
  data::write_tokens(path, magic);
  CHECK(data::map_tokens(path).to_vector() == magic);
  CHECK_THROWS_WITH_AS(Tokens({1, -2}), Contains("id -2 at position 1"), Error);
  CHECK_THROWS_AS(Tokens({int64_t{1} << 31}), Error);
}

TEST_CASE("token files: malformed ones give errors") {
  TemporaryDirectory dir;
  const std::string path = dir.file("bad.bin");
  const std::pair<std::string, const char*> cases[] = {
      {"", "is empty"},
      {"a", "has 1 bytes"},
      {"abc", "has 3 bytes"},
      {llm_c(20240520, 1, 4, 3), "cut off"},
      {llm_c(20240520, 1, 3, 4), "too long"},
      {llm_c(20240520, 1, 3, 3) + "x", "too long"},
      {llm_c(20240520, 1, 0, 0), "holds 0 tokens"},
      {llm_c(20240520, 1, -5, 5), "holds -5 tokens"},
      {llm_c(20240520, 1, INT32_MAX, 5), "cut off"},
      {llm_c(20240520, 2, 5, 5), "version 2"},
      {llm_c(20240520, 1, 5, 5).substr(0, 1023), "within its header"},
      {llm_c(20240520, 1, 5, 5).substr(0, 4), "within its header"},
      {llm_c(20240801, 7, 5, 10), "32-bit"},
  };
  for (const auto& bad : cases) {
    CAPTURE(bad.second);
    write(path, bad.first);
    const std::string text = error_of([&] { data::map_tokens(path); });
    CAPTURE(text);
    CHECK(text.find(bad.second) != std::string::npos);
    CHECK(text.find("bad.bin") != std::string::npos);
  }
  CHECK_THROWS_AS(data::map_tokens(dir.file("none")), Error);
  CHECK_THROWS_AS(data::map_tokens(dir.path.string()), Error);
  CHECK_THROWS_AS(data::map_tokens("/dev/zero"), Error);
}

TEST_CASE("token files: no random bytes crash the reader") {
  TemporaryDirectory dir;
  const std::string path = dir.file("fuzz.bin"), whole = llm_c(20240520, 1, 40, 40);
  data::CounterRng rng(1, 9);
  for (int i = 0; i < random_cases(1000, 20000); ++i) {
    std::string bytes = whole.substr(0, rng.below(4) ? whole.size() : rng.below(whole.size() + 1));
    for (int k = 0; k < 3 && !bytes.empty(); ++k) {
      const uint64_t most = rng.below(2) ? 16 : bytes.size();
      bytes[rng.below(std::min<uint64_t>(bytes.size(), most))] = static_cast<char>(rng.next());
    }
    write(path, bytes);
    try {
      const Tokens tokens = data::map_tokens(path);
      CHECK(tokens.size() > 0);
      TokenDataset(tokens, {.vocab = 1000, .block = 4}).next();
    } catch (const Error&) {}
  }
}

TEST_CASE("token files: one that is cut while it is in use is an error, not a crash") {
  TemporaryDirectory dir;
  const std::string path = dir.file("t.bin");
  data::write_tokens(path, counting(20000));
  const Tokens tokens = data::map_tokens(path);
  TokenDataset set(tokens, {.vocab = 20000, .block = 8});
  const data::Batch before = set.batch(3);
  // Replaced as a whole, as this library does: the mapping keeps the old content.
  data::write_tokens(path, {1, 2, 3});
  CHECK(same(set.batch(3).x, before.x));
  CHECK(data::map_tokens(path).size() == 3);
  data::write_tokens(path, counting(20000));
  const TokenDataset other(data::map_tokens(path), {.vocab = 20000, .block = 8});
  std::filesystem::resize_file(path, 2000);
  CHECK_THROWS_WITH_AS(other.batch(3), Contains("was cut from 41024 bytes to 2000"), Error);
  CHECK_THROWS_AS(other.validation_batch(0), Error);
  CHECK_THROWS_AS(other.train().to_vector(), Error);
  CHECK_THROWS_AS(data::unigram_entropy(other.train()), Error);
  write(path, "");
  CHECK(MappedFile(path).size() == 0);
}

TEST_CASE("tokens: positions of bad ids, and a hash that distinguishes arrays") {
  Ids ids = counting(10000);
  const uint64_t hash = data::check_tokens(Tokens(ids), 10000);
  CHECK(hash == data::check_tokens(Tokens(ids), 20000));
  CHECK(hash != data::check_tokens(Tokens(ids).slice(0, 9999), 10000));
  std::swap(ids[5000], ids[5004]);  // In the same lane.
  CHECK(hash != data::check_tokens(Tokens(ids), 10000));
  for (const int64_t at : {0, 4095, 4096, 9999}) {
    Ids bad(10000, 3);
    bad[static_cast<size_t>(at)] = 4;
    CHECK_THROWS_WITH_AS(data::check_tokens(Tokens(bad), 4),
                         Contains(fmt::format("token 4 at position {} ", at).c_str()), Error);
  }
}

TEST_CASE("unigram_entropy: against its definition") {
  CHECK(data::unigram_entropy(Tokens({5, 5, 5})) == 0);
  CHECK(data::unigram_entropy(Tokens({0, 1, 2, 3})) == doctest::Approx(std::log(4)));
  CHECK(data::unigram_entropy(Tokens({9, 9, 9, 70000})) ==
        doctest::Approx(-0.75 * std::log(0.75) - 0.25 * std::log(0.25)));
  CHECK(data::unigram_entropy(Tokens(counting(30000, 60000))) == doctest::Approx(std::log(30000)));
  CHECK_THROWS_AS(data::unigram_entropy(Tokens()), Error);
}

// --- data sets -----------------------------------------------------------------------------------

TEST_CASE("TokenDataset: the split, and how many tokens it takes") {
  const TokenDataset set(Tokens(counting(100)), {.vocab = 100, .block = 4});
  CHECK(set.train().to_vector() == counting(90));
  CHECK(set.validation().to_vector() == counting(10, 90));
  for (const double fraction : {0.1, 0.5, 0.03, 0.9, 0.3333}) {
    for (const int64_t block : {1, 7, 32}) {
      const auto make = [&](int64_t n) {
        const Tokens tokens(counting(n));
        TokenDataset(tokens, {.vocab = 1 << 20, .block = block, .validation = fraction});
      };
      const std::string text = error_of([&] { make(2 * block); });
      const size_t at = text.find("at least ");
      REQUIRE(at != std::string::npos);
      const int64_t n = std::stoll(text.substr(at + 9));
      CAPTURE(text);
      CHECK_NOTHROW(make(n));
      CHECK_THROWS_AS(make(n - 1), Error);
    }
  }
  const Tokens five(counting(5));
  CHECK_NOTHROW(TokenDataset(five, {.vocab = 5, .block = 4, .validation = 0}));
  CHECK_THROWS_WITH_AS(TokenDataset(five, {.vocab = 5, .block = 5, .validation = 0}),
                       Contains("block 5 needs at least 6"), Error);
  CHECK_THROWS_WITH_AS(TokenDataset(Tokens(), five, {.vocab = 5, .block = 2}),
                       Contains("has 0 tokens to train on"), Error);
  CHECK_THROWS_WITH_AS(TokenDataset(five, Tokens({1}), {.vocab = 5, .block = 2}),
                       Contains("has 1 tokens to validate on"), Error);
  CHECK_THROWS_WITH_AS(TokenDataset(Tokens(counting(100)), {.vocab = 95, .block = 4}),
                       Contains("token 95 at position 95 is not below 95"), Error);
  CHECK_THROWS_WITH_AS(TokenDataset(five, Tokens(counting(5, 2)), {.vocab = 5, .block = 4}),
                       Contains("token 5 at position 3 is not below 5"), Error);
  for (const data::TokenDatasetOptions& bad : {data::TokenDatasetOptions{.vocab = 0, .block = 1},
                                               {.vocab = 5, .block = 0},
                                               {.vocab = 5, .block = INT64_MAX},
                                               {.vocab = 5, .block = 1, .batch = 0},
                                               {.vocab = 5, .block = 1, .validation = -0.1},
                                               {.vocab = 5, .block = 1, .validation = 1},
                                               {.vocab = 5, .block = 1, .validation = NAN}}) {
    CHECK_THROWS_AS(TokenDataset(five, bad), Error);
  }
}

TEST_CASE("TokenDataset: batch k is a function of seed and k, and y is x shifted by one") {
  TemporaryDirectory dir;
  const Ids ids = counting(50);
  data::write_tokens(dir.file("t.bin"), ids);
  const data::TokenDatasetOptions options{
      .vocab = 50, .block = 6, .batch = 5, .validation = 0.2, .seed = 3};
  TokenDataset one{Tokens(ids), options}, two(data::map_tokens(dir.file("t.bin")), options);
  const RngState rng = rng_state();
  std::set<int64_t> starts;
  for (int64_t k = 0; k < 100; ++k) {
    CHECK(two.position() == k);
    const data::Batch a = one.batch(k), b = two.next();
    CHECK((same(a.x, b.x) && same(a.y, b.y)));
    CHECK((a.x.sizes() == IntList{5, 6} && a.x.dtype() == kInt64));
    CHECK(same(a.y, a.x + 1));
    for (int64_t row = 0; row < 5; ++row) starts.insert(a.x.data<int64_t>()[row * 6]);
  }
  // Training tokens are 0..39: the last window starts at 33, and its y ends with 39.
  CHECK(starts.size() == 34);
  CHECK((*starts.begin() == 0 && *starts.rbegin() == 33));
  CHECK(rng_state().draw == rng.draw);
  CHECK_FALSE(same(one.batch(0).x, one.batch(1).x));
  data::TokenDatasetOptions seeded = options;
  seeded.seed = 4;
  CHECK_FALSE(same(TokenDataset(Tokens(ids), seeded).batch(0).x, one.batch(0).x));
  CHECK_THROWS_AS(one.batch(-1), Error);
}

TEST_CASE("TokenDataset: batches are written into a step's own slots without allocation") {
  TokenDataset set(Tokens(counting(500)), {.vocab = 500, .block = 6, .batch = 5});
  for (const Mode mode : {Mode::Eager, Mode::Graph}) {
    auto difference = step([](const Tensor& x, const Tensor& y) { return (y - x).sum(); }, mode);
    const Tensor x = difference.input(0, {5, 6}, kInt64), y = difference.input(1, {5, 6}, kInt64);
    for (int64_t k = 0; k < 5; ++k) {
      const size_t before = cpu::memory_stats().allocations;
      set.batch(k, x, y);
      CHECK(cpu::memory_stats().allocations == before);
      CHECK(same(x, set.batch(k).x));
      CHECK(difference(x, y).item<int64_t>() == 30);
    }
    CHECK(difference.stats().recordings == (mode == Mode::Graph ? 1 : 0));
  }
  const Tensor good = zeros({5, 6}, kInt64);
  for (const Tensor& bad : {Tensor(), zeros({5, 7}, kInt64), zeros({6, 6}, kInt64), zeros({5, 6}),
                            zeros({30}, kInt64), zeros({6, 5}, kInt64).t()}) {
    CHECK_THROWS_WITH_AS(set.next(bad, good), Contains("x must be a contiguous int64[5, 6]"),
                         Error);
    CHECK_THROWS_WITH_AS(set.next(good, bad), Contains("y must be"), Error);
  }
  CHECK(set.position() == 0);
  auto inside = step([&](const Tensor& x) { return x + set.next().x; });
  CHECK_THROWS_AS(inside(good), Error);
}

TEST_CASE("TokenDataset: validation goes through its part once, in order") {
  // 41 validation tokens: 40 have a successor, which makes 13 windows of 3, 4 batches.
  const TokenDataset set(Tokens(counting(10)), Tokens(counting(41)),
                         {.vocab = 100, .block = 3, .batch = 4});
  CHECK(set.validation_batches() == 4);
  Ids seen;
  for (int64_t k = 0; k < 4; ++k) {
    CHECK(set.validation_rows(k) == (k < 3 ? 4 : 1));
    const data::Batch b = set.validation_batch(k);
    CHECK(b.x.sizes() == IntList{k < 3 ? 4 : 1, 3});
    CHECK(same(b.y, b.x + 1));
    for (int64_t v : b.x.to_vector<int64_t>()) seen.push_back(v);
    const Tensor x = zeros_like(b.x), y = zeros_like(b.y);
    set.validation_batch(k, x, y);
    CHECK((same(x, b.x) && same(y, b.y)));
  }
  CHECK(seen == counting(39));
  CHECK_THROWS_WITH_AS(set.validation_batch(4), Contains("only 4"), Error);
  CHECK_THROWS_AS(set.validation_batch(-1), Error);
  // 12 tokens are 4 windows of 3, but the last has no successor.
  const TokenDataset even(Tokens(counting(10)), Tokens(counting(12)),
                          {.vocab = 100, .block = 3, .batch = 3});
  CHECK(even.validation_batches() == 1);
  const TokenDataset none(Tokens(counting(9)), {.vocab = 9, .block = 3, .validation = 0});
  CHECK(none.validation_batches() == 0);
  CHECK_THROWS_AS(none.validation_batch(0), Error);
}

TEST_CASE("TokenDataset: a saved position continues, on the same data only") {
  const data::TokenDatasetOptions options{.vocab = 200, .block = 6, .batch = 5, .seed = ~0ull};
  TokenDataset one(Tokens(counting(200)), options), two(Tokens(counting(200)), options);
  for (int i = 0; i < 7; ++i) one.next();
  two.load_state_dict(one.state_dict());
  CHECK(two.position() == 7);
  for (int i = 0; i < 5; ++i) CHECK(same(one.next().x, two.next().x));
  const StateDict saved = one.state_dict();
  const auto refused = [&](const Ids& ids, data::TokenDatasetOptions o, const char* expected) {
    TokenDataset other{Tokens(ids), o};
    CHECK_THROWS_WITH_AS(other.load_state_dict(saved), Contains(expected), Error);
    CHECK(other.position() == 0);
  };
  data::TokenDatasetOptions o = options;
  o.seed = 1;
  refused(counting(200), o, "the saved seed is -1");
  o = options, o.batch = 4;
  refused(counting(200), o, "the saved batch is 5");
  o = options, o.block = 7;
  refused(counting(200), o, "the saved block is 6");
  refused(counting(190), options, "number of training tokens");
  Ids changed = counting(200);
  changed[17] = 3;
  refused(changed, options, "hash of the tokens");
  StateDict bad = saved;
  for (const int64_t none : {int64_t{-1}, INT64_MAX}) {
    bad["position"] = number(none);
    CHECK_THROWS_AS(one.load_state_dict(bad), Error);
  }
  bad.erase("position");
  CHECK_THROWS_AS(one.load_state_dict(bad), Error);
}
