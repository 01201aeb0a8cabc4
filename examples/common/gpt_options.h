#pragma once
// The command line of train_gpt.

#include "examples/common/training.h"

namespace examples {

/// Whether `path` is a folder of token files (train.bin and val.bin), as opposed to sources.
bool has_train_bin(const std::string& path);

struct GptOptions : TrainingOptions {
  GptOptions();
  std::string dtype = "float32", data, tokenizer, vocab, merges, prompt;
  brrr::models::GPTOptions model = {.block = 32, .layers = 2, .heads = 4, .width = 64};
  int64_t warmup = -1;  ///< -1 on the command line: 5 % of the steps.
  int64_t eval_batches = 200, sample = 0, top_k = 0;
  double weight_decay = 0.1, clip = 1.0, temperature = 0.8, top_p = 1.0;
  bool check_numerics = false;

  brrr::DType compute_dtype() const;

 private:
  void check() override;
  bool reads(const std::filesystem::path& folder, const std::filesystem::path& file) const override;
  void add_run();
  void add_data();
  void add_model();
};

}  // namespace examples
