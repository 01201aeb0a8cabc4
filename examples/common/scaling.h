#pragma once
// What a step gains from more processes: `overhead --ranks`.

#include <string>
#include <vector>

#include "examples/common/page.h"
#include "examples/common/task.h"

namespace examples {

/// What a process that mpirun has started measures with the others, a JSON line on stdout from the
/// first of them.
void print_scaling_row(const std::vector<Task>& tasks, const std::vector<int64_t>& sizes,
                       const std::string& optimizer, double seconds);

/// A step on so many processes: task, mode, batch, ranks, ms, samples_per_s, the gain in those over
/// one process, the mb that each sends, under_way_ms while at least one exchange was, waited_ms by
/// the computation; a checksum of the parameters after as many steps in each mode, the fallbacks of
/// all processes, and the last_fallback's reason.
using ScalingRow = brrr::bench::Json;
/// Starts the program overhead, beside this one, on 1, 2, .. `most` processes under mpirun, with
/// `arguments`. Returns what they say; throws brrr::Error if there is no mpirun or a run fails.
std::vector<ScalingRow> measure_scaling(int most, const std::vector<std::string>& arguments);
/// Why the rows cannot be trusted.
struct ScalingCheck {
  std::vector<std::string> complaints;
  int64_t compared = 0;  ///< Rows of graph mode that were held against eager's.
};
ScalingCheck check_scaling(const std::vector<ScalingRow>& rows);
/// A table for each task.
std::vector<Sheet> scaling_sheets(const std::vector<ScalingRow>& rows);

}  // namespace examples
