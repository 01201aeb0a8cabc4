#include "models/text/token_dataset.h"

#include <algorithm>
#include <bit>

#include "core/check.h"
#include "core/context.h"
#include "core/tensor_impl.h"
#include "models/counter_rng.h"

namespace brrr::data {

// --- construction --------------------------------------------------------------------------------

// The size of the validation part, at the end.
static int64_t split(int64_t n, double fraction) {
  return static_cast<int64_t>(static_cast<double>(n) * fraction);
}

// The smallest number of tokens for which both parts have at least `least`.
static int64_t fewest(int64_t least, double fraction) {
  const double smaller = std::min(fraction, 1 - fraction);
  auto n = static_cast<int64_t>(static_cast<double>(least - 1) / smaller) - 1;
  while (split(n, fraction) < least || n - split(n, fraction) < least) ++n;
  return n;
}

static const TokenDatasetOptions& checked(const TokenDatasetOptions& o) {
  BRRR_CHECK(o.vocab > 0, "TokenDataset: vocab must be positive, got {}", o.vocab);
  BRRR_CHECK(o.block > 0 && o.block <= INT32_MAX, "TokenDataset: block must be positive, got {}",
             o.block);
  BRRR_CHECK(o.batch > 0 && o.batch <= INT32_MAX,
             "TokenDataset: batch must be from 1 to {}, got {}", INT32_MAX, o.batch);
  BRRR_CHECK(o.validation == 0 || (o.validation >= 1e-6 && o.validation <= 1 - 1e-6),
             "TokenDataset: validation must be 0 or a fraction between 0 and 1, got {}",
             o.validation);
  return o;
}

void TokenDataset::check_parts() const {
  const int64_t least = options_.block + 1;
  BRRR_CHECK(train_.size() >= least,
             "TokenDataset: {} has {} tokens to train on; block {} needs at least {}",
             train_.what(), train_.size(), options_.block, least);
  BRRR_CHECK(validation_.size() == 0 || validation_.size() >= least,
             "TokenDataset: {} has {} tokens to validate on; block {} needs at least {}",
             validation_.what(), validation_.size(), options_.block, least);
}

TokenDataset::TokenDataset(const Tokens& tokens, const TokenDatasetOptions& options)
    : options_(checked(options)) {
  const int64_t n = tokens.size(), last = split(n, options.validation), least = options.block + 1;
  BRRR_CHECK(options.validation == 0 || (last >= least && n - last >= least),
             "TokenDataset: {}: {} tokens are {} to train on and {} to validate on, but block {} "
             "needs {} in each: give at least {} tokens, a smaller block, or validation 0",
             tokens.what(), n, n - last, last, options.block, least,
             fewest(least, options.validation));
  train_ = tokens.slice(0, n - last);
  validation_ = tokens.slice(n - last, last);
  check_parts();
  hash_ = check_tokens(tokens, options.vocab);
}

TokenDataset::TokenDataset(const Tokens& train, const Tokens& validation,
                           const TokenDatasetOptions& options)
    : options_(checked(options)), train_(train), validation_(validation) {
  check_parts();
  hash_ = check_tokens(train, options.vocab);
  check_tokens(validation, options.vocab);
}

// --- batches -------------------------------------------------------------------------------------

Batch TokenDataset::make(int64_t rows) const {
  moved_.check();
  check_host_access("TokenDataset", nullptr);
  return {raw_empty({rows, options_.block}, kInt64, kCPU),
          raw_empty({rows, options_.block}, kInt64, kCPU)};
}

// The memory of `t`, after checking that it can take `rows` rows.
int64_t* TokenDataset::slot(const char* name, const Tensor& t, int64_t rows) const {
  moved_.check();
  BRRR_CHECK(t.defined() && t.dtype() == kInt64 && t.device() == kCPU && t.is_contiguous() &&
                 t.sizes() == IntList({rows, options_.block}),
             "TokenDataset: {} must be a contiguous int64[{}, {}] on the CPU, got {}", name, rows,
             options_.block, describe(t));
  return t.data<int64_t>();
}

void TokenDataset::batch(int64_t k, const Tensor& x, const Tensor& y) const {
  BRRR_CHECK(k >= 0, "TokenDataset: there is no batch {}", k);
  int64_t *to_x = slot("x", x, options_.batch), *to_y = slot("y", y, options_.batch);
  train_.check();
  const int64_t block = options_.block;
  CounterRng rng(options_.seed, static_cast<uint64_t>(k));
  for (int64_t row = 0; row < options_.batch; ++row) {
    const auto starts = static_cast<uint64_t>(train_.size() - block);
    const auto start = static_cast<int64_t>(rng.below(starts));
    train_.copy(start, block, to_x + row * block);
    train_.copy(start + 1, block, to_y + row * block);
  }
}

Batch TokenDataset::batch(int64_t k) const {
  Batch b = make(options_.batch);
  batch(k, b.x, b.y);
  return b;
}

Batch TokenDataset::next() {
  Batch b = batch(position_);
  ++position_;
  return b;
}

void TokenDataset::next(const Tensor& x, const Tensor& y) {
  batch(position_, x, y);
  ++position_;
}

// --- validation ----------------------------------------------------------------------------------

int64_t TokenDataset::validation_batches() const {
  const int64_t windows = std::max<int64_t>(validation().size() - 1, 0) / options_.block;
  return (windows + options_.batch - 1) / options_.batch;
}

int64_t TokenDataset::validation_rows(int64_t k) const {
  BRRR_CHECK(k >= 0 && k < validation_batches(),
             "TokenDataset: there is no validation batch {}, only {}", k, validation_batches());
  const int64_t windows = (validation_.size() - 1) / options_.block;
  return std::min(options_.batch, windows - k * options_.batch);
}

void TokenDataset::validation_batch(int64_t k, const Tensor& x, const Tensor& y) const {
  const int64_t rows = validation_rows(k), all = rows * options_.block;
  int64_t *to_x = slot("x", x, rows), *to_y = slot("y", y, rows);
  validation_.check();
  // The windows are contiguous in the tokens, and so are the rows in x.
  const int64_t start = k * options_.batch * options_.block;
  validation_.copy(start, all, to_x);
  validation_.copy(start + 1, all, to_y);
}

Batch TokenDataset::validation_batch(int64_t k) const {
  Batch b = make(validation_rows(k));
  validation_batch(k, b.x, b.y);
  return b;
}

// --- resuming ------------------------------------------------------------------------------------

StateDict TokenDataset::state_dict() const {
  return {
      {"position", number(position())},  {"seed", number(std::bit_cast<int64_t>(options_.seed))},
      {"batch", number(options_.batch)}, {"block", number(options_.block)},
      {"train", number(train_.size())},  {"hash", number(std::bit_cast<int64_t>(hash_))}};
}

void TokenDataset::check_state_dict(const StateDict& dict) const {
  check_same_values("TokenDataset::load_state_dict", "data set", state_dict(), dict,
                    {{"seed", "seed"},
                     {"batch", "batch"},
                     {"block", "block"},
                     {"train", "number of training tokens"},
                     {"hash", "hash of the tokens"}});
  const int64_t position = dict.at("position").item<int64_t>();
  BRRR_CHECK(position >= 0 && position <= INT64_MAX / 2,
             "TokenDataset::load_state_dict: the position is {}", position);
}

void TokenDataset::load_state_dict(const StateDict& dict) {
  check_state_dict(dict);
  position_ = dict.at("position").item<int64_t>();
}

}  // namespace brrr::data
