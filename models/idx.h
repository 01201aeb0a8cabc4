#pragma once
// IDX, the file format of MNIST (yann.lecun.com/exdb/mnist): two zero bytes, an element type, the
// number of dims, the sizes as big-endian int32, the elements in big-endian order.

#include <string>

#include "models/data.h"

namespace brrr::data {

/// Reads a file of any element type: uint8, int32, float32, float64; int8 and int16 become int32.
/// Throws brrr::Error naming the file and what is wrong with it.
Tensor read_idx(const std::string& path);
/// Writes a uint8, int32, float32 or float64 tensor; the old file stays if that fails.
void write_idx(const std::string& path, const Tensor& t);

/// The training or the test part of a directory with MNIST's four files (train-images-idx3-ubyte,
/// train-labels-idx1-ubyte, t10k-...). Pixels are scaled to 0..1 and flattened.
Dataset read_idx_dataset(const std::string& directory, bool train);

}  // namespace brrr::data
