#pragma once
// Measures how a step scales with the number of processes: `overhead --ranks`.

#include <string>
#include <vector>

#include "examples/common/page.h"
#include "examples/common/task.h"

namespace examples {

/// Runs in each process that mpirun has started: measures all tasks; rank 0 prints a JSON line for
/// each figure.
void print_scaling_row(const std::vector<Task>& tasks, const std::string& optimizer,
                       double seconds);

struct Scaling {
  /// A row per configuration: task, mode, batch, ranks, ms, samples_per_s, its gain over one
  /// process, the mb that each process sends, under_way_ms with at least one exchange in flight,
  /// waited_ms by the computation; a checksum of the parameters after the same number of steps in
  /// each mode, the fallbacks of all processes, and last_fallback, its reason.
  std::vector<Json> rows;
  std::vector<Sheet> sheets;            ///< The rows as a table for each task.
  std::vector<std::string> complaints;  ///< Why the figures cannot be trusted.
  int64_t compared = 0;                 ///< Graph mode rows that were compared with eager mode.
};
/// Runs the program overhead, from this program's folder, on 1, 2, .. `most` processes under mpirun
/// with `arguments`. Throws brrr::Error if there is no mpirun or a run fails.
Scaling measure_scaling(int most, const std::vector<std::string>& arguments);

}  // namespace examples
