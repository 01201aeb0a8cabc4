#pragma once
// Shared by programs of several processes that measure steps together.

#include <brrr/brrr.h>

#include <algorithm>
#include <string>

namespace brrr::bench {

/// The first rank's seconds, on all ranks; for timed().
inline double first_ranks_clock(double seconds) {
  return dist::size() > 1 ? dist::broadcast(full({1}, seconds, kFloat64)).item<double>() : seconds;
}

/// Costs of the exchanges of a series, per step.
struct ExchangeCost {
  double megabytes = 0;     ///< Sent by this rank.
  double under_way_ms = 0;  ///< While at least one exchange was in flight.
  double waited_ms = 0;     ///< The computation waited.
  double hidden() const {
    return under_way_ms > 0 ? std::max(0.0, 1 - waited_ms / under_way_ms) : 0;
  }
};
/// Since `before`, per step.
inline ExchangeCost exchange_cost(const dist::Stats& before, double steps) {
  const dist::Stats now = dist::stats();
  return {1e-6 * static_cast<double>(now.bytes_sent - before.bytes_sent) / steps,
          1e3 * (now.in_flight_s - before.in_flight_s) / steps,
          1e3 * (now.waited_s - before.waited_s) / steps};
}

/// Records the costs of a series in a file of figures.
template <class Figures>
void note_exchange(Figures& figures, const std::string& name, const dist::Stats& before,
                   double steps) {
  const ExchangeCost c = exchange_cost(before, steps);
  figures.note(name + ", under way", c.under_way_ms, "ms");
  figures.note(name + ", waited", c.waited_ms, "ms");
  figures.note(name + ", hidden", 100 * c.hidden(), "%");
}

}  // namespace brrr::bench
