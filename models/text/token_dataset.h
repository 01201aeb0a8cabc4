#pragma once
// Windows of a token sequence in batches: what a language model trains on.

#include "models/data.h"
#include "models/text/tokens.h"

namespace brrr::data {

struct TokenDatasetOptions {
  int64_t vocab = 0;        ///< All ids must be below it.
  int64_t block = 64;       ///< Tokens in a window.
  int64_t batch = 8;        ///< Windows in a batch.
  double validation = 0.1;  ///< The fraction, from the end, that is not trained on; may be 0.
  uint64_t seed = 0;
};

/// x and y are int64[batch, block]; y is x moved on by one token. Batch k of the training part is a
/// function of (seed, k) alone, drawn with replacement by a generator of its own: whatever else
/// draws random numbers, runs repeat, both modes see the same, and a position is one integer.
class TokenDataset : public Stateful {
 public:
  /// Throws if an id is not below vocab, or if a part is smaller than a window and the token after
  /// it (the message says how many tokens it takes).
  TokenDataset(const Tokens& tokens, const TokenDatasetOptions& options);
  /// With a validation part of its own, as nanoGPT's train.bin and val.bin; the fraction is unused.
  TokenDataset(const Tokens& train, const Tokens& validation, const TokenDatasetOptions& options);

  const Tokens& train() const { return moved_.checked(train_); }
  const Tokens& validation() const { return moved_.checked(validation_); }
  /// Of all tokens, or of the training part if the validation part is one of its own.
  uint64_t hash() const { return moved_.checked(hash_); }

  /// Batch k of the training part; the second form writes into contiguous CPU tensors of that shape
  /// and dtype (step.input(i, {batch, block}, kInt64)) and allocates nothing.
  Batch batch(int64_t k) const;
  void batch(int64_t k, const Tensor& x, const Tensor& y) const;
  /// Batch position(), and moves on.
  Batch next();
  void next(const Tensor& x, const Tensor& y);
  int64_t position() const { return moved_.checked(position_); }

  /// The validation part in order, in windows that do not overlap; what remains after the last
  /// whole one is left out. All batches have `batch` rows but the last, which may have fewer.
  int64_t validation_batches() const;
  int64_t validation_rows(int64_t k) const;
  Batch validation_batch(int64_t k) const;
  void validation_batch(int64_t k, const Tensor& x, const Tensor& y) const;

  /// The position; seed, sizes and a hash of the tokens are part of it and must match on loading.
  StateDict state_dict() const override;
  void check_state_dict(const StateDict& dict) const override;
  void load_state_dict(const StateDict& dict) override;

 private:
  void check_parts() const;
  Batch make(int64_t rows) const;
  int64_t* slot(const char* name, const Tensor& t, int64_t rows) const;

  TokenDatasetOptions options_;
  Tokens train_, validation_;
  uint64_t hash_ = 0;
  int64_t position_ = 0;
  MovedMark moved_{"TokenDataset"};
};

}  // namespace brrr::data
