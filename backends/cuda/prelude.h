#pragma once

#include <string>

namespace brrr::cuda {

// The text every program for a device starts with: ops/vocabulary/vec_device.h, the portable parts
// of the CPU's prelude and dialect.h, without their #include lines. Embedded at build time.
const std::string& prelude();

}  // namespace brrr::cuda
