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

/// A read-only sequence of token ids. Copies and slices share the memory.
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
  /// For messages: the file's path, or "the tokens".
  std::string what() const;
  /// Throws if the mapped file has been truncated (see MappedFile); copy() does not check.
  void check() const;

 private:
  friend Tokens map_tokens(const std::string& path);
  std::shared_ptr<const std::vector<int32_t>> memory_;
  std::shared_ptr<const MappedFile> file_;
  const uint16_t* mapped_ = nullptr;  // The file's first token.
  int64_t first_ = 0, size_ = 0;
  MovedMark moved_{"Tokens"};
};

/// The header format of a file of little-endian uint16 tokens.
enum class TokenFormat : uint8_t {
  LlmC,     ///< 256 int32: the magic number 20240520, version 1, the number of tokens, zeros.
  NanoGPT,  ///< No header.
};

/// Memory-maps a token file. The magic number determines the format: no file of GPT-2 tokens starts
/// with those two values. Throws if the file is empty, has an odd number of bytes, or differs in
/// length from what its header says.
Tokens map_tokens(const std::string& path);
/// Writes ids below 65536; if that fails the old file is unchanged.
void write_tokens(const std::string& path, const std::vector<int64_t>& ids,
                  TokenFormat format = TokenFormat::LlmC);

/// Throws at the first id that is not below `vocab`, naming it and its position. Returns, from the
/// same pass, a hash of all ids and their count.
uint64_t check_tokens(const Tokens& tokens, int64_t vocab);

/// The entropy of the ids' frequencies in nats per token, -sum over ids of (c / n) log(c / n) with
/// c the id's count of n in all (Shannon, 1948): the loss of the best model that ignores context.
double unigram_entropy(const Tokens& tokens);

}  // namespace brrr::data
