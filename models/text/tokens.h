#pragma once
// Arrays of token ids, in memory or in a file.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/moved.h"

namespace brrr {
class MappedFile;
}

namespace brrr::data {

/// A read-only sequence of token ids. Copies and slices share what they show.
class Tokens {
 public:
  Tokens() = default;
  /// Throws at an id that is negative or above INT32_MAX.
  explicit Tokens(const std::vector<int64_t>& ids);

  int64_t size() const { return moved_.checked(size_); }
  Tokens slice(int64_t first, int64_t n) const;
  /// Writes the ids [first, first + n) to `to`.
  void copy(int64_t first, int64_t n, int64_t* to) const;
  std::vector<int64_t> to_vector() const;
  /// The file's path, or "the tokens": for messages.
  std::string what() const;
  /// Throws if a file below it has become shorter (see MappedFile); copy() does not look.
  void check() const;

 private:
  friend Tokens map_tokens(const std::string& path);
  std::shared_ptr<const std::vector<int32_t>> memory_;
  std::shared_ptr<const MappedFile> file_;
  const uint16_t* mapped_ = nullptr;  // The file's first token.
  int64_t first_ = 0, size_ = 0;
  MovedMark moved_{"Tokens"};
};

/// How a file of little-endian uint16 tokens begins.
enum class TokenFormat : uint8_t {
  LlmC,     ///< 256 int32: the magic number 20240520, version 1, the number of tokens, zeros.
  NanoGPT,  ///< No header.
};

/// A token file as memory, without reading it. The magic number tells the format: no file that is
/// GPT-2's starts with those two tokens. Throws if it is empty, odd, cut off, or of another length
/// than its header says.
Tokens map_tokens(const std::string& path);
/// Writes ids below 65536; the old file stays if that fails.
void write_tokens(const std::string& path, const std::vector<int64_t>& ids,
                  TokenFormat format = TokenFormat::LlmC);

/// Throws at the first id that is not below `vocab`, naming it and its position. Returns a hash of
/// all ids and their number, so that one pass serves both.
uint64_t check_tokens(const Tokens& tokens, int64_t vocab);

/// The entropy of the ids' frequencies in nats per token, -sum over ids of (c / n) log(c / n) with
/// c the id's count of n in all (Shannon, 1948): the loss of the best model that ignores context.
double unigram_entropy(const Tokens& tokens);

}  // namespace brrr::data
