#pragma once
// What a GPT's training run consists of: the text, the model, and all that a checkpoint holds.

#include <brrr/brrr.h>

#include <memory>
#include <string>
#include <vector>

#include "examples/common/gpt_options.h"

namespace examples {

struct GptRun {
  brrr::Device device = brrr::kCPU;
  std::unique_ptr<brrr::data::Tokenizer> tokenizer;  ///< Null if a .bin's is not known.
  int64_t vocabulary = 0;
  std::vector<int64_t> prompt;
  std::unique_ptr<brrr::models::GPT> model;
  // The rest is null in a run that only samples.
  brrr::data::Tokens text;
  std::unique_ptr<brrr::data::TokenDataset> data;
  std::unique_ptr<brrr::optim::AdamW> optimizer;
  std::unique_ptr<brrr::optim::Schedule> schedule;
  std::unique_ptr<brrr::optim::GradScaler> scaler;  ///< With float16 only.
  int64_t step = 0;

  brrr::TrainingState state(brrr::Metadata metadata = {}) const;
};

/// Makes everything, and restores it from o.resume if that is given. Whatever is wrong with files
/// and options throws here. Sets o.tokenizer if that was left open.
std::unique_ptr<GptRun> make_run(GptOptions& o);

/// Writes the checkpoint, if there is to be one.
void save_run(const GptRun& run, const GptOptions& o);

/// What a sampled id stands for; numbers where the tokenizer is not known.
std::string decoded(const GptRun& run, const std::vector<int64_t>& ids);

}  // namespace examples
