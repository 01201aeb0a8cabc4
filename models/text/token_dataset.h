#pragma once
// Batches of windows of a token sequence, for training language models.

#include "models/data.h"
#include "models/text/tokens.h"

namespace brrr::data {

struct TokenDatasetOptions {
  int64_t vocab = 0;        ///< All ids must be below it.
  int64_t block = 64;       ///< Tokens per window.
  int64_t batch = 8;        ///< Windows per batch.
  double validation = 0.1;  ///< The fraction, at the end, that is held out; may be 0.
  uint64_t seed = 0;
};

/// x and y are int64[batch, block]; y is x shifted by one token. Batch k of the training part is a
/// function of (seed, k) alone, drawn with replacement by a generator of its own. So runs are
/// reproducible, both modes see the same batches, and the position is one integer.
class TokenDataset : public Stateful {
 public:
  /// Throws if an id is not below vocab, or if a part has fewer than block + 1 tokens (the message
  /// says how many tokens it takes).
  TokenDataset(const Tokens& tokens, const TokenDatasetOptions& options);
  /// With a separate validation part (nanoGPT's train.bin and val.bin); ignores options.validation.
  TokenDataset(const Tokens& train, const Tokens& validation, const TokenDatasetOptions& options);

  const Tokens& train() const { return moved_.checked(train_); }
  const Tokens& validation() const { return moved_.checked(validation_); }
  /// A hash of all tokens, or of the training part if the validation part is separate.
  uint64_t hash() const { return moved_.checked(hash_); }

  /// Batch k of the training part; the second form writes into contiguous CPU tensors of that shape
  /// and dtype (step.input(i, {batch, block}, kInt64)) and allocates nothing.
  Batch batch(int64_t k) const;
  void batch(int64_t k, const Tensor& x, const Tensor& y) const;
  /// Returns batch position() and advances the position.
  Batch next();
  void next(const Tensor& x, const Tensor& y);
  int64_t position() const { return moved_.checked(position_); }

  /// The validation part in order, in windows that do not overlap; an incomplete last window is
  /// dropped. All batches have `batch` rows, except that the last may have fewer.
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
