#pragma once
// What a GPT's training run consists of: the text, the model, and all that a checkpoint holds.

#include "examples/common/gpt_options.h"

namespace examples {

class GptRun : public Training {
 public:
  /// Makes everything, and restores it from o.resume if that is given. Whatever is wrong with files
  /// and options throws here. Sets o.tokenizer if that was left open.
  explicit GptRun(GptOptions& o);

  std::unique_ptr<brrr::data::Tokenizer> tokenizer;  ///< Null if a .bin's is not known.
  int64_t vocabulary = 0;
  std::vector<int64_t> prompt;
  std::unique_ptr<brrr::models::GPT> model;
  // The rest is null in a run that only samples.
  brrr::data::Tokens text;
  std::unique_ptr<brrr::data::TokenDataset> data;

  /// What a sampled id stands for; numbers where the tokenizer is not known.
  std::string decoded(const std::vector<int64_t>& ids) const;

 protected:
  brrr::Metadata notes() const override;
  uint64_t data_hash() const override { return data->hash(); }
  GptOptions& options;

 private:
  void find_tokenizer(const std::string& characters);
  void make_data(const std::string& characters);
  void make_training();
  std::vector<int64_t> encode_prompt() const;
};

}  // namespace examples
