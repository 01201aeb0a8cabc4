#pragma once
// In-memory data sets, and a loader of batches in a seeded order that can be resumed.

#include <cstdint>
#include <string>
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
  bool drop_last = false;  ///< Drops an epoch's last batch if it is smaller.
};

/// Iterates over a data set indefinitely, epoch after epoch. The order comes from a generator of
/// its own, independent of all other random draws.
class Loader : public Stateful {
 public:
  Loader(Dataset dataset, const LoaderOptions& options);
  /// The next batch, a copy on the data set's device.
  Batch next();
  int64_t epoch() const { return moved_.checked(epoch_); }
  int64_t batches_per_epoch() const;
  /// Batches taken so far.
  int64_t position() const { return epoch() * batches_per_epoch() + position_ / options_.batch; }

  /// The position; seed, batch size and data set size are part of it and must match on loading.
  StateDict state_dict() const override;
  void check_state_dict(const StateDict& dict) const override;
  void load_state_dict(const StateDict& dict) override;

 private:
  void shuffle();
  Dataset dataset_;
  LoaderOptions options_;
  int64_t epoch_ = 0, position_ = 0;  // Position: examples used in this epoch.
  std::vector<int64_t> order_;
  MovedMark moved_{"Loader"};
};

/// The fraction of rows whose largest logit is the label's.
double accuracy(const Tensor& logits, const Tensor& labels);

// --- sources -------------------------------------------------------------------------------------

/// `n` noisy images of the digits 0 to 9, 28 by 28 pixels as [n, 784]: pen strokes, each image with
/// its own jitter, slant, rotation, scale, shift, pen width, blot and noise. Image i is a function
/// of (seed, i) alone; another seed gives held-out images.
Dataset digits(int64_t n, uint64_t seed = 0);

// IDX is the file format of MNIST (yann.lecun.com/exdb/mnist): two zero bytes, an element type, the
// number of dims, the sizes as big-endian int32, the elements in big-endian order.

/// Reads a file of any element type: uint8, int32, float32, float64; int8 and int16 become int32.
/// Throws brrr::Error naming the file and what is wrong with it.
Tensor read_idx(const std::string& path);
/// Writes a uint8, int32, float32 or float64 tensor; the old file stays if that fails.
void write_idx(const std::string& path, const Tensor& t);

/// The training or the test part of a directory with MNIST's four files (train-images-idx3-ubyte,
/// train-labels-idx1-ubyte, t10k-...). Pixels are scaled to 0..1 and flattened.
Dataset read_idx_dataset(const std::string& directory, bool train);

}  // namespace brrr::data
