#include "models/text/tokens.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <map>

#include "core/check.h"
#include "core/hash.h"
#include "models/file.h"

namespace brrr::data {

static_assert(std::endian::native == std::endian::little, "token files are little-endian");

namespace {

constexpr int32_t kMagic = 20240520, kMagic32 = 20240801;
constexpr size_t kHeader = 256;  // int32s.
constexpr int64_t kMaxIds = 1 << 16;
constexpr int64_t kChunk = 4096;

}  // namespace

// --- in memory -----------------------------------------------------------------------------------

Tokens::Tokens(const std::vector<int64_t>& ids) : size_(static_cast<int64_t>(ids.size())) {
  std::vector<int32_t> narrow(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    BRRR_CHECK(ids[i] >= 0 && ids[i] <= INT32_MAX,
               "Tokens: id {} at position {} is not in [0, 2^31)", ids[i], i);
    narrow[i] = static_cast<int32_t>(ids[i]);
  }
  memory_ = std::make_shared<const std::vector<int32_t>>(std::move(narrow));
}

std::string Tokens::what() const { return moved_.checked(file_) ? file_->path() : "the tokens"; }

void Tokens::check() const {
  if (moved_.checked(file_)) file_->check();
}

Tokens Tokens::slice(int64_t first, int64_t n) const {
  BRRR_CHECK(first >= 0 && n >= 0 && first <= size() && n <= size_ - first,
             "Tokens: {} from {} on are not within {}", n, first, size_);
  Tokens part = *this;
  part.first_ += first;
  part.size_ = n;
  return part;
}

void Tokens::copy(int64_t first, int64_t n, int64_t* to) const {
  BRRR_CHECK(first >= 0 && n >= 0 && first <= size() && n <= size_ - first,
             "Tokens: {} from {} on are not within {}", n, first, size_);
  if (n == 0) return;
  if (mapped_) {
    std::copy_n(mapped_ + first_ + first, n, to);
  } else {
    std::copy_n(memory_->data() + first_ + first, n, to);
  }
}

std::vector<int64_t> Tokens::to_vector() const {
  check();
  std::vector<int64_t> ids(static_cast<size_t>(size_));
  copy(0, size_, ids.data());
  return ids;
}

// --- files ---------------------------------------------------------------------------------------

Tokens map_tokens(const std::string& path) {
  auto file = std::make_shared<const MappedFile>(path);
  const uint64_t bytes = file->size();
  BRRR_CHECK(bytes > 0, "map_tokens: {} is empty", path);
  const auto* start = static_cast<const char*>(file->data());
  std::array<int32_t, 3> header{};
  std::memcpy(header.data(), start, std::min<uint64_t>(bytes, sizeof header));
  const auto [magic, version, count] = header;
  BRRR_CHECK(magic != kMagic32,
             "map_tokens: {} holds 32-bit tokens (llm.c's version 7); 16-bit ones are read", path);
  uint64_t skip = 0;
  if (magic == kMagic) {
    skip = kHeader * sizeof(int32_t);
    BRRR_CHECK(bytes >= skip, "map_tokens: {} ends at byte {}, within its header of {}", path,
               bytes, skip);
    BRRR_CHECK(version == 1, "map_tokens: {}: version {} of llm.c's format; known is 1", path,
               version);
    BRRR_CHECK(count > 0, "map_tokens: {}: the header says that it holds {} tokens", path, count);
    const uint64_t expected = skip + 2 * static_cast<uint64_t>(count);
    BRRR_CHECK(bytes == expected,
               "map_tokens: {}: the header says {} tokens, which with it take {} bytes, but the "
               "file has {} ({})",
               path, count, expected, bytes, bytes < expected ? "cut off" : "too long");
  }
  BRRR_CHECK(bytes % 2 == 0, "map_tokens: {} has {} bytes; 16-bit tokens take an even number", path,
             bytes);
  Tokens tokens;
  tokens.mapped_ = reinterpret_cast<const uint16_t*>(start + skip);
  tokens.size_ = static_cast<int64_t>((bytes - skip) / 2);
  tokens.file_ = std::move(file);
  return tokens;
}

void write_tokens(const std::string& path, const std::vector<int64_t>& ids, TokenFormat format) {
  BRRR_CHECK(!ids.empty(), "write_tokens: {}: there are no tokens to write", path);
  std::vector<uint16_t> narrow(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    BRRR_CHECK(ids[i] >= 0 && ids[i] < kMaxIds,
               "write_tokens: {}: id {} at position {} is not in [0, {}); the format has 16 bits",
               path, ids[i], i, kMaxIds);
    narrow[i] = static_cast<uint16_t>(ids[i]);
  }
  std::vector<Bytes> parts = {{narrow.data(), 2 * narrow.size()}};
  std::array<int32_t, kHeader> header{kMagic, 1};
  if (format == TokenFormat::LlmC) {
    BRRR_CHECK(ids.size() <= INT32_MAX,
               "write_tokens: {}: llm.c's header cannot count {} tokens; use TokenFormat::NanoGPT",
               path, ids.size());
    header[2] = static_cast<int32_t>(ids.size());
    parts.insert(parts.begin(), {header.data(), sizeof header});
  } else {
    for (const int32_t magic : {kMagic, kMagic32}) {
      const bool looks_like_header =
          ids.size() > 1 && narrow[0] == (magic & 0xffff) && narrow[1] == magic >> 16;
      BRRR_CHECK(!looks_like_header,
                 "write_tokens: {}: the first two ids are a magic number of llm.c's, and would be "
                 "read as its header; use TokenFormat::LlmC",
                 path);
    }
  }
  replace_file(path, parts);
}

// --- passes over all tokens ----------------------------------------------------------------------

// Calls f(ids, n, position) for chunks that fit in cache.
template <class F> static void for_each_chunk(const Tokens& tokens, F f) {
  std::array<int64_t, kChunk> ids;
  for (int64_t at = 0; at < tokens.size(); at += kChunk) {
    const int64_t n = std::min(kChunk, tokens.size() - at);
    tokens.check();
    tokens.copy(at, n, ids.data());
    f(ids.data(), n, at);
  }
}

uint64_t check_tokens(const Tokens& tokens, int64_t vocab) {
  // Four interleaved hashes, so that their multiplications do not depend on each other.
  std::array<Fnv, 4> lanes;
  for_each_chunk(tokens, [&](const int64_t* ids, int64_t n, int64_t at) {
    int64_t bad = 0;
    for (int64_t i = 0; i < n; ++i) bad += ids[i] >= vocab;
    if (bad > 0) {
      const int64_t* first = std::find_if(ids, ids + n, [&](int64_t id) { return id >= vocab; });
      fail("{}: token {} at position {} is not below {}, the size of the vocabulary", tokens.what(),
           *first, at + (first - ids), vocab);
    }
    for (int64_t i = 0; i < n; ++i) {
      lanes[static_cast<size_t>(i % 4)].add(static_cast<uint64_t>(ids[i]));
    }
  });
  Fnv all{static_cast<uint64_t>(tokens.size())};
  for (const Fnv& lane : lanes) all.add(lane.hash);
  return all.hash;
}

double unigram_entropy(const Tokens& tokens) {
  BRRR_CHECK(tokens.size() > 0, "unigram_entropy: there are no tokens");
  // Counts ordered by id, so that the order of summation is fixed; large ids may be sparse.
  std::vector<int64_t> low(kMaxIds);
  std::map<int64_t, int64_t> high;
  for_each_chunk(tokens, [&](const int64_t* ids, int64_t n, int64_t) {
    for (int64_t i = 0; i < n; ++i) ids[i] < kMaxIds ? ++low[ids[i]] : ++high[ids[i]];
  });
  const auto n = static_cast<double>(tokens.size());
  double sum = 0;
  const auto add = [&](int64_t count) {
    if (count > 0) sum -= static_cast<double>(count) / n * std::log(static_cast<double>(count) / n);
  };
  for (int64_t count : low) add(count);
  for (const auto& [id, count] : high) add(count);
  return sum;
}

}  // namespace brrr::data
