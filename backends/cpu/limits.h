#pragma once
#include "core/device.h"

namespace brrr::cpu {

DeviceLimits limits(bool anew);

/// Time of an empty parallel region on all threads of the pool; 0 with one, or where the gang is
/// not to be had.
double round_trip_ns();

}  // namespace brrr::cpu
