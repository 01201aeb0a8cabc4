#pragma once
// Data sets in memory, and batches of them in a seeded order that can be resumed.

#include <cstdint>
#include <vector>

#include "core/moved.h"
#include "models/state_dict.h"

namespace brrr::data {

/// Images float32 [n, pixels] in 0..1, labels int64 [n] in [0, classes).
struct Dataset {
  Tensor images, labels;
  int64_t classes = 10;
  int64_t size() const { return labels.size(0); }
  Dataset to(Device device) const { return {images.to(device), labels.to(device), classes}; }
};

struct Batch {
  Tensor x, y;
};

struct LoaderOptions {
  int64_t batch = 32;
  bool shuffle = true;  ///< A new order every epoch, a function of (seed, epoch) alone.
  uint64_t seed = 0;
  bool drop_last = false;  ///< Leaves out an epoch's last batch if it is smaller.
};

/// Goes through a data set for ever, epoch after epoch. The order comes from a generator of its
/// own: it does not depend on what else draws random numbers.
class Loader : public Stateful {
 public:
  Loader(Dataset dataset, const LoaderOptions& options);
  /// The next batch, a copy on the data set's device.
  Batch next();
  int64_t epoch() const {
    moved_.check();
    return epoch_;
  }
  int64_t batches_per_epoch() const;

  /// The position; seed, batch size and data set size are part of it and must match on loading.
  StateDict state_dict() const override;
  void check_state_dict(const StateDict& dict) const override;
  void load_state_dict(const StateDict& dict) override;

 private:
  void shuffle();
  Dataset dataset_;
  LoaderOptions options_;
  int64_t epoch_ = 0, position_ = 0;  // Position: examples used of this epoch.
  std::vector<int64_t> order_;
  MovedMark moved_{"Loader"};
};

/// The fraction of rows whose largest logit is the label's.
double accuracy(const Tensor& logits, const Tensor& labels);

}  // namespace brrr::data
