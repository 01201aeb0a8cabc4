#pragma once
// GPT-2's published checkpoints: safetensors files with the names and layouts of Hugging Face's
// transformers (model_doc/gpt2).

#include <string>

#include "models/gpt.h"

namespace brrr::models {

/// The options that a config.json of model_type "gpt2" describes. A setting that GPT does not
/// support, for example another activation, is an error that names the field.
GPTOptions gpt2_options(const std::string& config_path);

/// Copies the weights of a file into `gpt`, which must have GPT-2's architecture (learned
/// positions, gelu, layer norms, biases). Names may start with "transformer."; the file stores
/// projections as [in, out]; its constant masks "attn.bias" and "attn.masked_bias" are ignored;
/// without lm_head.weight the output layer is wte.weight. Floating dtypes are converted. All
/// missing, unexpected and mismatched tensors are listed in one error, before anything changes.
void load_gpt2(const std::string& path, GPT& gpt);
/// Writes a file that load_gpt2 and transformers read, bit for bit what `gpt` holds.
void save_gpt2(const std::string& path, const GPT& gpt);

}  // namespace brrr::models
