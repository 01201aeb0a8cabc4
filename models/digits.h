#pragma once
// A data set that needs no download.

#include "models/data.h"

namespace brrr::data {

/// `n` noisy images of the digits 0 to 9, 28 by 28 pixels as [n, 784]: pen strokes, each image with
/// its own jitter, slant, rotation, scale, shift, pen width, blot and noise. Image i is a function
/// of (seed, i) alone; another seed gives held-out images.
Dataset digits(int64_t n, uint64_t seed = 0);

}  // namespace brrr::data
