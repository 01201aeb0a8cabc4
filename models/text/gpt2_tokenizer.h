#pragma once
// GPT-2's byte-level byte-pair encoding (Radford et al., "Language models are unsupervised
// multitask learners", 2019), read from its published files.

#include <array>
#include <unordered_map>

#include "models/text/tokenizer.h"

namespace brrr::data {

struct GPT2TokenizerOptions {
  /// Whether encode() takes "<|endoftext|>" within a text for the token of that name. Off, the
  /// text can hold nothing but text.
  bool parse_special = false;
};

/// Takes any bytes; what is not UTF-8 survives too.
class GPT2Tokenizer final : public Tokenizer {
 public:
  /// Reads vocab.json (token -> id) and merges.txt (one pair a line, in order of rank). The two
  /// must belong together: ids 0 to n - 1, all bytes, each merge's parts and result in the
  /// vocabulary, and nothing in it that no merge makes. Errors name the file and the line.
  GPT2Tokenizer(const std::string& vocab_json, const std::string& merges_txt,
                GPT2TokenizerOptions options = {});
  static GPT2Tokenizer from_state(const std::string& state);

  std::string name() const override { return "gpt2"; }
  int64_t vocab_size() const override {
    return static_cast<int64_t>(moved_.checked(tokens_).size());
  }
  /// Time is linear in the text but for a logarithm of its longest piece.
  std::vector<int64_t> encode(std::string_view text) const override;
  std::string decode(const std::vector<int64_t>& ids) const override;
  std::string state() const override;
  /// The id of <|endoftext|>, -1 if the vocabulary lacks it.
  int64_t end_of_text() const { return moved_.checked(end_of_text_); }

 private:
  struct Merge {
    int32_t left, right, id;
  };
  GPT2Tokenizer() = default;
  void read_vocabulary(const std::string& where, const std::string& text);
  void read_merges(const std::string& path, const std::string& text);
  int32_t find(const std::string& bytes) const;
  void encode_text(std::string_view text, std::vector<int64_t>& ids) const;
  void encode_piece(std::string_view piece, std::vector<int32_t>& ids) const;

  GPT2TokenizerOptions options_;
  std::vector<std::string> tokens_;  // Bytes by id.
  std::unordered_map<std::string, int32_t> ids_;
  std::vector<Merge> merges_;                    // By rank.
  std::unordered_map<uint64_t, int32_t> ranks_;  // By the pair.
  std::array<int32_t, 256> byte_ids_{};
  int64_t end_of_text_ = -1;
  MovedMark moved_{"GPT2Tokenizer"};
};

}  // namespace brrr::data
