#pragma once
// What a step gains from more processes: `overhead --ranks`.

#include <functional>
#include <string>
#include <vector>

#include "examples/common/task.h"

namespace examples {

/// What a process that mpirun has started measures with the others, a JSON line on stdout from the
/// first of them.
void print_scaling_row(const std::vector<Task>& tasks, const std::vector<int64_t>& sizes,
                       const std::string& optimizer, double seconds);

/// A step on so many processes.
struct ScalingRow {
  std::string task, mode;
  int64_t batch = 0;
  int ranks = 1;
  double ms = 0, samples_per_s = 0;
  double gain = 1;          ///< In samples a second, over one process.
  double megabytes = 0;     ///< Sent by each.
  double under_way_ms = 0;  ///< While at least one exchange was.
  double waited_ms = 0;     ///< By the computation.
};
/// Starts `program`, which is overhead, 1, 2, .. `most` times under mpirun, with `arguments`; calls
/// f(row) for what each says. Throws brrr::Error if there is no mpirun or a run fails.
void measure_scaling(const std::string& program, int most,
                     const std::vector<std::string>& arguments,
                     const std::function<void(const ScalingRow&)>& f);
/// The same as a table, of this program.
void show_scaling(int most, const std::vector<std::string>& arguments);
/// The file of a program of this folder: beside this one.
std::string program_file(const std::string& name);

}  // namespace examples
