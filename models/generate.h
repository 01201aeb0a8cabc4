#pragma once
// Text from a GPT, token by token, with a key-value cache.

#include <functional>
#include <optional>
#include <vector>

#include "graph/step.h"
#include "models/gpt.h"

namespace brrr::models {

struct SampleOptions {
  double temperature = 1.0;  ///< Divides the logits; 0 takes the likeliest token.
  int64_t top_k = 0;         ///< Only the k likeliest tokens (Fan et al., 2018); 0: all.
  double top_p = 1.0;        ///< Only the likeliest tokens that together reach this probability,
                             ///< after top_k (Holtzman et al., "nucleus sampling", 2020).
};

/// Draws a token id, int64 [rows], for each row of logits [rows, vocab], on the random stream (one
/// draw, none at temperature 0). Among equal logits the lowest id counts as the likelier. -infinity
/// is never drawn; throws where a row has NaN, infinity or nothing else (inside a recorded step of
/// temperature 0 that takes the likeliest all the same, NaN before all).
Tensor sample(const Tensor& logits, const SampleOptions& options = {});

struct GenerateOptions {
  int64_t tokens = 256;  ///< How many to generate.
  double temperature = 1.0;
  int64_t top_k = 0;
  double top_p = 1.0;
  /// Each call draws from a stream that starts here and leaves the global one as it was; without
  /// a seed it draws from the global one.
  std::optional<uint64_t> seed = {};
  Mode mode = Mode::Eager;
  /// Called inside the call with each new id, in order, once it is there. On a GPU every token is
  /// waited for then. What it throws ends the call.
  std::function<void(int64_t)> on_token = {};
};

/// Generates from one GPT again and again: the cache and the recording are made once. Prompt tokens
/// go through the same step as new ones, one at a time, with the position as an input, so graph
/// mode needs a single recording, whatever the lengths.
///
/// A context that has filled the block is cut to its last block / 2 tokens, which are fed again
/// from position 0: any number of tokens can be generated, each seeing between block / 2 and block
/// tokens, and positions mean what they meant in training.
class Generator : NotCopied {
 public:
  /// `gpt` must outlive it and stay on its device and dtype. Options as for generate.
  Generator(GPT& gpt, const GenerateOptions& options);
  /// New ids after `prompt`, of which the last `block` count. Runs without dropout and gradients;
  /// the module's mode is as before afterwards. Threads may use Generators of their own of one GPT
  /// at the same time if it is in eval mode: else one ends it for all.
  std::vector<int64_t> operator()(const std::vector<int64_t>& prompt);
  /// Of the step that one token takes.
  StepStats stats() const { return step_.stats(); }

 private:
  /// The new ids after `context`, to which it adds them. `fed` tokens of that are in the cache.
  std::vector<int64_t> add_to(std::vector<Tensor>& context, int64_t& fed);
  void check_logits(const Tensor& largest) const;
  GPT& gpt_;
  GenerateOptions options_;
  KeyValueCache cache_;
  Tensor positions_;  // Not the cache's slots: one moves against the other from call to call.
  /// The next id; at temperature 0 its logit, too.
  Step<std::function<std::vector<Tensor>(const Tensor&, const Tensor&)>> step_;
};

/// The `options.tokens` ids that a Generator adds to `prompt`. Throws unless the prompt has a token
/// and all of them are in [0, vocab), and where logits are such as sample() refuses.
std::vector<int64_t> generate(GPT& gpt, const std::vector<int64_t>& prompt,
                              const GenerateOptions& options = {});

}  // namespace brrr::models
