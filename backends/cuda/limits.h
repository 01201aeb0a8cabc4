#pragma once
#include "core/device.h"

namespace brrr::cuda {

DeviceLimits limits(bool anew);

}  // namespace brrr::cuda
