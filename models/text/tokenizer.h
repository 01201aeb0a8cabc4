#pragma once
// Text as token ids and back: by character, by byte, and (gpt2_tokenizer.h) as GPT-2 does it.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/moved.h"

namespace brrr::data {

/// decode(encode(text)) == text for every text that encode takes. Tokenizers do not change: any
/// number of threads may use one.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  /// "char", "byte" or "gpt2".
  virtual std::string name() const = 0;
  /// Ids lie in [0, vocab_size).
  virtual int64_t vocab_size() const = 0;
  virtual std::vector<int64_t> encode(std::string_view text) const = 0;
  /// Throws where an id is out of range. The text of single ids need not be whole characters.
  virtual std::string decode(const std::vector<int64_t>& ids) const = 0;
  /// Everything needed to make the same tokenizer again, as JSON: for a checkpoint's metadata.
  virtual std::string state() const = 0;
};

/// ids[i], if it is in [0, vocab); else throws, naming `what`.
size_t checked_id(const char* what, const std::vector<int64_t>& ids, size_t i, int64_t vocab);

/// The tokenizer whose state() this is. Throws if it is none, saying what is wrong with it.
std::unique_ptr<Tokenizer> tokenizer_from_state(const std::string& state);

/// One token per UTF-8 code point. The vocabulary is what occurs in a text, in order of code point.
class CharTokenizer final : public Tokenizer {
 public:
  /// Throws if the text is empty or not UTF-8, naming the offset.
  explicit CharTokenizer(std::string_view text);
  std::string name() const override { return "char"; }
  int64_t vocab_size() const override {
    return static_cast<int64_t>(moved_.checked(vocab_).size());
  }
  /// Throws at a character that the vocabulary lacks, naming it and its offset.
  std::vector<int64_t> encode(std::string_view text) const override;
  std::string decode(const std::vector<int64_t>& ids) const override;
  std::string state() const override;

 private:
  std::vector<char32_t> vocab_;  // Sorted; the id is the index.
  MovedMark moved_{"CharTokenizer"};
};

/// One token per byte: takes everything, 256 ids.
class ByteTokenizer final : public Tokenizer {
 public:
  std::string name() const override { return "byte"; }
  int64_t vocab_size() const override { return 256; }
  std::vector<int64_t> encode(std::string_view text) const override;
  std::string decode(const std::vector<int64_t>& ids) const override;
  std::string state() const override;
};

}  // namespace brrr::data
