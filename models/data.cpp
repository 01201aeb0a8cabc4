#include "models/data.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "core/check.h"
#include "models/counter_rng.h"
#include "ops/factory_ops.h"
#include "ops/library_ops.h"
#include "ops/pointwise_ops.h"

namespace brrr::data {

Loader::Loader(Dataset dataset, const LoaderOptions& options)
    : dataset_(std::move(dataset)), options_(options) {
  BRRR_CHECK(dataset_.images.defined() && dataset_.labels.defined() && dataset_.images.dim() >= 1 &&
                 dataset_.labels.dim() == 1 && dataset_.images.size(0) == dataset_.size(),
             "Loader: images and labels must have one row per example");
  BRRR_CHECK(options.batch > 0, "Loader: batch must be positive, got {}", options.batch);
  BRRR_CHECK(batches_per_epoch() > 0, "Loader: {} examples do not make a batch of {}",
             dataset_.size(), options.batch);
  shuffle();
}

int64_t Loader::batches_per_epoch() const {
  moved_.check();
  const int64_t n = dataset_.size(), batch = options_.batch;
  return n / batch + (!options_.drop_last && n % batch != 0);
}

// A Fisher-Yates shuffle whose order depends on (seed, epoch) alone.
void Loader::shuffle() {
  order_.resize(static_cast<size_t>(dataset_.size()));
  std::iota(order_.begin(), order_.end(), 0);
  if (!options_.shuffle) return;
  CounterRng rng(options_.seed, static_cast<uint64_t>(epoch_));
  for (size_t i = order_.size(); i > 1; --i) std::swap(order_[i - 1], order_[rng.below(i)]);
}

Batch Loader::next() {
  moved_.check();
  const int64_t n = std::min(options_.batch, dataset_.size() - position_);
  const auto first = order_.begin() + position_;
  const Tensor rows = tensor(std::vector<int64_t>(first, first + n)).to(dataset_.labels.device());
  Batch batch{index_select(dataset_.images, 0, rows), index_select(dataset_.labels, 0, rows)};
  position_ += n;
  const int64_t left = dataset_.size() - position_;
  if (left == 0 || (options_.drop_last && left < options_.batch)) {
    position_ = 0;
    ++epoch_;
    shuffle();
  }
  return batch;
}

StateDict Loader::state_dict() const {
  moved_.check();
  return {{"epoch", number(epoch_)},
          {"position", number(position_)},
          {"seed", number(std::bit_cast<int64_t>(options_.seed))},
          {"batch", number(options_.batch)},
          {"size", number(dataset_.size())},
          {"shuffle", number(int64_t{options_.shuffle})},
          {"drop_last", number(int64_t{options_.drop_last})}};
}

void Loader::check_state_dict(const StateDict& dict) const {
  const StateDict mine = state_dict();
  StateDict whole = dict;
  for (const char* later : {"shuffle", "drop_last"}) {  // Missing in older files.
    whole.emplace(later, mine.at(later));
  }
  check_same_values("Loader::load_state_dict", "loader", mine, whole,
                    {{"seed", "seed"},
                     {"batch", "batch"},
                     {"size", "size"},
                     {"shuffle", "shuffle"},
                     {"drop_last", "drop_last"}});
  const int64_t epoch = dict.at("epoch").item<int64_t>();
  const int64_t position = dict.at("position").item<int64_t>();
  const int64_t last = dataset_.size() - (options_.drop_last ? options_.batch : 1);
  BRRR_CHECK(epoch >= 0 && epoch < INT64_MAX / batches_per_epoch(),
             "Loader::load_state_dict: epoch {} does not exist", epoch);
  BRRR_CHECK(position >= 0 && position <= last && position % options_.batch == 0,
             "Loader::load_state_dict: no batch of {} begins at position {} of {} examples",
             options_.batch, position, dataset_.size());
}

void Loader::load_state_dict(const StateDict& dict) {
  check_state_dict(dict);
  epoch_ = dict.at("epoch").item<int64_t>();
  position_ = dict.at("position").item<int64_t>();
  shuffle();
}

double accuracy(const Tensor& logits, const Tensor& labels) {
  BRRR_CHECK(logits.dim() == 2 && labels.dim() == 1 && logits.size(0) == labels.size(0) &&
                 labels.size(0) > 0,
             "accuracy: logits {} do not fit labels {}", to_string(logits.sizes()),
             to_string(labels.sizes()));
  NoGradGuard guard;
  return (logits.argmax(1) == labels).to(kFloat64).mean().item<double>();
}

}  // namespace brrr::data
