#pragma once
// The command line of train_gpt.

#include <brrr/brrr.h>

#include <limits>
#include <string>

namespace examples {

struct GptOptions {
  std::string mode = "graph", device = "cpu", dtype = "float32";
  std::string data, tokenizer, vocab, merges;
  std::string checkpoint, resume, loss_csv, prompt;
  std::string positions = "learned", activation = "gelu", norm = "layer";
  int64_t steps = 2000, stop_at = 0, batch = 16, accumulate = 1;
  int64_t block = 32, layers = 2, heads = 4, width = 64;
  int64_t warmup = -1;  ///< -1: 5 % of the steps.
  int64_t save_every = 0, eval_every = 500, eval_batches = 200, log_every = 100;
  int64_t sample = 0, top_k = 0, seed = 1, threads = 0, verify_every = 0;
  double lr = 4e-3, dropout = 0.0, weight_decay = 0.1, clip = 1.0;
  double temperature = 0.8, top_p = 1.0;
  bool compile_report = false, check_numerics = false;
  brrr::Metadata saved;  ///< What the checkpoint to resume from says.

  int64_t warmup_steps() const { return warmup >= 0 ? warmup : steps / 20; }
  brrr::DType compute_dtype() const;
  brrr::models::GPTOptions model(int64_t vocabulary) const;
};

/// Reads the command line. What it does not say about a run that is resumed, the checkpoint does;
/// throws where the two contradict each other. Returns false if the program ends with `exit_code`.
bool read_options(int argc, char** argv, GptOptions& o, int& exit_code);

/// What must be the same when a run goes on, by the options' names.
brrr::Metadata kept_options(const GptOptions& o);

}  // namespace examples
