#pragma once
// Tokenizers: by character, by byte, and (gpt2_tokenizer.h) GPT-2's.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/moved.h"

namespace brrr::data {

/// decode(encode(text)) == text for every text that encode accepts. Tokenizers are immutable: any
/// number of threads may use one.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  /// "char", "byte" or "gpt2".
  virtual std::string name() const = 0;
  /// Ids lie in [0, vocab_size).
  virtual int64_t vocab_size() const = 0;
  virtual std::vector<int64_t> encode(std::string_view text) const = 0;
  /// Throws if an id is out of range. The text of a single id may be an incomplete character.
  virtual std::string decode(const std::vector<int64_t>& ids) const = 0;
  /// Everything needed to make the same tokenizer again, as JSON: for a checkpoint's metadata.
  virtual std::string state() const = 0;
};

/// ids[i] if it is in [0, vocab); otherwise throws, naming `what`.
size_t checked_id(const char* what, const std::vector<int64_t>& ids, size_t i, int64_t vocab);

/// Restores a tokenizer from its state(). Throws, saying what is wrong, if this is not one.
std::unique_ptr<Tokenizer> tokenizer_from_state(const std::string& state);

/// One token per UTF-8 code point. The vocabulary is the code points of a given text, sorted.
class CharTokenizer final : public Tokenizer {
 public:
  /// Throws if the text is empty or not UTF-8, naming the offset.
  explicit CharTokenizer(std::string_view text);
  std::string name() const override { return "char"; }
  int64_t vocab_size() const override {
    return static_cast<int64_t>(moved_.checked(vocab_).size());
  }
  /// Throws at a character that is not in the vocabulary, naming it and its offset.
  std::vector<int64_t> encode(std::string_view text) const override;
  std::string decode(const std::vector<int64_t>& ids) const override;
  std::string state() const override;

 private:
  std::vector<char32_t> vocab_;  // Sorted; the id is the index.
  MovedMark moved_{"CharTokenizer"};
};

/// One token per byte, 256 ids: accepts any text.
class ByteTokenizer final : public Tokenizer {
 public:
  std::string name() const override { return "byte"; }
  int64_t vocab_size() const override { return 256; }
  std::vector<int64_t> encode(std::string_view text) const override;
  std::string decode(const std::vector<int64_t>& ids) const override;
  std::string state() const override;
};

}  // namespace brrr::data
