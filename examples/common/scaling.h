#pragma once
// What a step gains from more processes: `overhead --ranks`.

#include <string>
#include <vector>

#include "examples/common/page.h"
#include "examples/common/task.h"

namespace examples {

/// What a process that mpirun has started measures with the others, a JSON line on stdout from the
/// first of them.
void print_scaling_row(const std::vector<Task>& tasks, const std::string& optimizer,
                       double seconds);

struct Scaling {
  /// A step on so many processes: task, mode, batch, ranks, ms, samples_per_s, the gain in those
  /// over one process, the mb that each sends, under_way_ms while at least one exchange was,
  /// waited_ms by the computation; a checksum of the parameters after as many steps in each mode,
  /// the fallbacks of all processes, and the last_fallback's reason.
  std::vector<Json> rows;
  std::vector<Sheet> sheets;            ///< A table of them for each task.
  std::vector<std::string> complaints;  ///< Why they cannot be trusted.
  int64_t compared = 0;                 ///< Rows of graph mode that were held against eager's.
};
/// Starts the program overhead, beside this one, on 1, 2, .. `most` processes under mpirun, with
/// `arguments`. Throws brrr::Error if there is no mpirun or a run fails.
Scaling measure_scaling(int most, const std::vector<std::string>& arguments);

}  // namespace examples
