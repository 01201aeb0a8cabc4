#include "examples/common/gpt_options.h"

#include <algorithm>
#include <filesystem>

#include "core/check.h"
#include "models/text/text.h"

namespace examples {

namespace fs = std::filesystem;

bool has_train_bin(const std::string& path) {
  std::error_code none;
  return fs::is_directory(path, none) && fs::exists(fs::path(path) / "train.bin", none);
}

GptOptions::GptOptions()
    : TrainingOptions(
          "Trains a GPT on a text and samples from it. Both modes give the same losses "
          "to the last bit.",
          "train_gpt") {
  steps = 2000, batch = 16, log_every = 100, lr = 4e-3;
  saved_options_ = {"tokenizer",  "dtype",      "block",  "layers",       "heads", "width",
                    "positions",  "activation", "norm",   "dropout",      "steps", "batch",
                    "accumulate", "lr",         "warmup", "weight-decay", "clip",  "seed"};
  sizes_ = {"tokenizer", "block", "layers", "heads", "width", "positions", "activation", "norm"};
  add_run();
  add_data();
  add_model();
}

void GptOptions::add_run() {
  add_place();
  add("--dtype", dtype, "of matrix products; weights stay float32",
      one_of({"float32", "bfloat16", "float16"}));
  add_steps("steps of the whole run, over which the schedule is laid out (0: only sample)", 0);
  add_saving("--checkpoint");
  add("--seed", seed, "of weights, batches, dropout and samples", whole_number(0));
  add("--verify-every", verify_every, "check every n-th replay against eager (0: never)",
      whole_number(0, INT32_MAX));
  flag("--check-numerics", check_numerics,
       "slow: stop at the first operation that makes a NaN or infinity, and name it");
  flag("--compile-report", explain,
       "say what graph mode recorded, fused and replayed, and what it took");
}

void GptOptions::add_data() {
  add_input(
      "--data", data,
      "a text, a .bin file of 16-bit tokens (llm.c, nanoGPT), a folder with train.bin and val.bin, "
      "or a folder of sources; without it brrr's own sources, from within their folder",
      existing_path());
  add("--tokenizer", tokenizer, "char, byte or gpt2 (default: char; gpt2 for .bin)",
      one_of({"char", "byte", "gpt2"}));
  add_input("--vocab", vocab, "GPT-2's vocab.json", existing_file());
  add_input("--merges", merges, "GPT-2's merges.txt", existing_file());
  needs("--vocab", "--merges");
  needs("--merges", "--vocab");
  add("--eval-every", eval_every, "steps between validation losses (0: at the end)",
      whole_number(0));
  add("--eval-batches", eval_batches,
      "batches of one, spread over the validation part (0: all of it)", whole_number(0));
  add("--sample", sample, "tokens to sample at the end", whole_number(0));
  plain("--prompt", prompt, "text that the sample continues (default: a new line)");
  needs("--prompt", "--sample");
  add("--temperature", temperature, "0 takes the likeliest token", real_number(0));
  add("--top-k", top_k, "only the k likeliest tokens (0: all)", whole_number(0));
  add("--top-p", top_p, "only the likeliest that together reach this probability",
      real_number(1e-9, 1));
}

void GptOptions::add_model() {
  add("--layers", model.layers, "transformer blocks", whole_number(1));
  add("--heads", model.heads, "attention heads in each", whole_number(1));
  add("--width", model.width, "of the residual stream", whole_number(1));
  add("--block", model.block, "the longest context, in tokens", whole_number(1));
  add("--dropout", model.dropout, "probability", real_number(0, 0.99));
  add("--positions", model.positions, "learned or rotary", one_of({"learned", "rotary"}));
  add("--activation", model.activation, "gelu or swiglu", one_of({"gelu", "swiglu"}));
  add("--norm", model.norm, "layer or rms", one_of({"layer", "rms"}));
  add_batch("sequences");
  add("--lr", lr, "highest learning rate; it falls to a tenth along a cosine", real_number(0));
  plain("--warmup", warmup, "steps in which it rises (default: 5 % of all)", whole_number(0));
  add("--weight-decay", weight_decay, "of matrices; nothing else decays", real_number(0));
  add("--clip", clip, "norm to which all gradients together are clipped (0: off)", real_number(0));
}

void GptOptions::check() {
  BRRR_CHECK(steps > 0 || (!resume.empty() && sample > 0),
             "--steps 0 only samples: give --resume and --sample with it");
  BRRR_CHECK(
      steps > 0 || (checkpoint.empty() && loss_csv.empty() && log.empty() && kernels.empty()),
      "--steps 0 only samples: leave --checkpoint, --loss-csv, --log and --kernels out");
  BRRR_CHECK(kernels.empty() || !check_numerics,
             "--kernels: --check-numerics runs every step eagerly, and builds none; leave one out");
  if (warmup < 0) warmup = steps / 20;
  // --resume uses the checkpoint's text unless --data names another; a hash is compared later.
  if (steps > 0) {
    saved_defaults_.emplace_back("data");
  } else {
    for (const char* word : {"steps", "seed"}) std::erase(saved_options_, word);
    saved_defaults_.emplace_back("seed");  // A sample may use another seed.
  }
}

bool GptOptions::reads(const fs::path& folder, const fs::path& file) const {
  if (file == "train.bin") return true;  // Would be read once it exists.
  if (has_train_bin(folder.string())) return file == "val.bin";
  // The same choice as source_files(), but by name, because the file may not exist yet.
  const auto& endings = brrr::data::kSourceExtensions;
  if (!std::count(endings.begin(), endings.end(), file.extension())) return false;
  fs::path at = folder;
  for (const fs::path& part : file.parent_path()) {
    at /= part;
    if (brrr::data::is_skipped_directory(at)) return false;
  }
  return true;
}

brrr::DType GptOptions::compute_dtype() const {
  return dtype == "bfloat16"  ? brrr::kBFloat16
         : dtype == "float16" ? brrr::kFloat16
                              : brrr::kFloat32;
}

}  // namespace examples
