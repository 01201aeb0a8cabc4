#pragma once

// The lower bound of a step's time: its matrix products at the measured peak, plus the bytes of all
// other kernels at the bandwidth measured for their size.

#include "tests/bench/bench.h"
#include "tests/bench/report.h"

namespace brrr::bench {

// The limit of a step in microseconds, from a profile of `steps` steps: products and bytes.
struct StepLimit {
  double products_us = 0, bytes_us = 0;
  double us() const { return products_us + bytes_us; }
};

template <class Run> StepLimit step_limit(const Run& run, int steps) {
  const DeviceLimits limits = device_limits();
  Profile profile;
  run(steps);
  StepLimit least;
  for (const ProfileRow& row : profile.rows()) {
    const auto calls = static_cast<double>(row.calls);
    if (row.kind == "contraction") {
      least.products_us += row.flops / limits.gflops_of(row.dtype) * 1e-3 / steps;
    } else if (row.bytes > 0) {
      least.bytes_us += row.bytes / limits.gb_per_second(row.bytes / calls) * 1e-3 / steps;
    }
  }
  return least;
}

inline void report_limit(Report& report, const std::string& name, double us,
                         const StepLimit& least) {
  report.at_most(
      name + "to its products and bytes at their limits", 1.15, us / least.us(), "x",
      fmt::format("{:.1f} us, {:.1f} and {:.1f} us", us, least.products_us, least.bytes_us));
}

}  // namespace brrr::bench
