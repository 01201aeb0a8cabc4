#pragma once
// Generates tokens with a GPT and a key-value cache.

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

/// Draws a token id, int64 [rows], for each row of logits [rows, vocab], from the random stream
/// (one draw, none at temperature 0). Of equal logits the lowest id ranks first. -infinity is never
/// drawn; throws if a row has NaN or +infinity, or only -infinity (at temperature 0 inside a
/// recorded step it takes the argmax without this check; NaN ranks highest).
Tensor sample(const Tensor& logits, const SampleOptions& options = {});

struct GenerateOptions {
  int64_t tokens = 256;  ///< Number of tokens to generate.
  double temperature = 1.0;
  int64_t top_k = 0;
  double top_p = 1.0;
  /// With a seed each call draws from its own stream, seeded so, and leaves the global one
  /// unchanged; without one it draws from the global stream.
  std::optional<uint64_t> seed = {};
  Mode mode = Mode::Eager;
  /// Called with each new id, in order, as soon as it has been computed; on a GPU this waits for
  /// every token. An exception from it ends the call.
  std::function<void(int64_t)> on_token = {};
};

/// Generates repeatedly from one GPT; creates the cache and the recording once. Prompt tokens go
/// through the same step as new ones, one at a time, with the position as an input, so graph mode
/// needs a single recording for all lengths.
///
/// When the context has filled the block it is cut to its last block / 2 tokens, which are fed
/// again from position 0. So any number of tokens can be generated, each with a context of block /
/// 2 to block tokens, and positions mean what they meant in training.
class Generator : NotCopied {
 public:
  /// `gpt` must outlive it and keep its device and dtype. Options as for generate.
  Generator(GPT& gpt, const GenerateOptions& options);
  /// The new ids after `prompt`, of which the last `block` tokens are used. Runs without dropout
  /// and gradients; restores the module's train/eval mode. Threads may run Generators of their own
  /// on one GPT concurrently if it is in eval mode; otherwise one switches the mode for all.
  std::vector<int64_t> operator()(const std::vector<int64_t>& prompt);
  /// The statistics of the step that computes one token.
  StepStats stats() const { return step_.stats(); }

 private:
  /// Generates ids and appends them to `context`, whose first `fed` tokens are in the cache.
  std::vector<int64_t> append_to(std::vector<Tensor>& context, int64_t& fed);
  void check_logits(const Tensor& largest) const;
  GPT& gpt_;
  GenerateOptions options_;
  KeyValueCache cache_;
  Tensor positions_;  // A copy of cache_.slots: with one storage their relative offset would vary.
  /// Returns the next id, and at temperature 0 also its logit.
  Step<std::function<std::vector<Tensor>(const Tensor&, const Tensor&)>> step_;
};

/// The `options.tokens` ids that a Generator appends to `prompt`. Throws if the prompt is empty or
/// has an id outside [0, vocab), and for logits for which sample() throws.
std::vector<int64_t> generate(GPT& gpt, const std::vector<int64_t>& prompt,
                              const GenerateOptions& options = {});

}  // namespace brrr::models
