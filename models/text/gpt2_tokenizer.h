#pragma once
// GPT-2's byte-level byte-pair encoding (Radford et al., "Language models are unsupervised
// multitask learners", 2019), read from its published files.

#include <array>
#include <unordered_map>

#include "models/text/tokenizer.h"

namespace brrr::data {

struct GPT2TokenizerOptions {
  /// Whether encode() maps "<|endoftext|>" in a text to the token of that name. If false it is
  /// encoded as ordinary text.
  bool parse_special = false;
};

/// Encodes any bytes losslessly, also invalid UTF-8.
class GPT2Tokenizer final : public Tokenizer {
 public:
  /// Reads vocab.json (token -> id) and merges.txt (one pair per line, by rank). Throws, naming the
  /// file and the line, unless they are consistent: ids 0 to n - 1, all 256 bytes, each merge's
  /// parts and result in the vocabulary, and no token that no merge produces.
  GPT2Tokenizer(const std::string& vocab_json, const std::string& merges_txt,
                GPT2TokenizerOptions options = {});
  static GPT2Tokenizer from_state(const std::string& state);

  std::string name() const override { return "gpt2"; }
  int64_t vocab_size() const override {
    return static_cast<int64_t>(moved_.checked(tokens_).size());
  }
  /// Takes time O(n log m) for n bytes of text, m of them in its longest piece.
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
  std::vector<std::string> tokens_;  // A token's bytes, by id.
  std::unordered_map<std::string, int32_t> ids_;
  std::vector<Merge> merges_;                    // By rank.
  std::unordered_map<uint64_t, int32_t> ranks_;  // By pair_key().
  std::array<int32_t, 256> byte_ids_{};
  int64_t end_of_text_ = -1;
  MovedMark moved_{"GPT2Tokenizer"};
};

}  // namespace brrr::data
