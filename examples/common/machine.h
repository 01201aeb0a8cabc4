#pragma once
// What a figure was measured on.

#include <string>

#include "tests/bench/stream.h"

namespace examples {

using brrr::bench::MachineLimits;

/// Time of an empty parallel region on two threads, in nanoseconds; 0 with one thread.
double spin_round_trip_ns();

/// Compiler, C++ standard and OpenBLAS, on one line.
std::string versions();

}  // namespace examples
