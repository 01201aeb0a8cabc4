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

/// A step on so many processes: task, mode, batch, ranks, ms, samples_per_s, the gain in those over
/// one process, the mb that each sends, under_way_ms while at least one exchange was, waited_ms by
/// the computation.
using ScalingRow = brrr::bench::Json;
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
