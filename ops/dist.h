#pragma once
// The processes (ranks) of a distributed run.

#include <cstdint>
#include <string>

namespace brrr::dist {

/// Joins the other processes if mpirun or srun started this one (throws brrr::Error if built
/// without MPI); otherwise does nothing: this is rank 0 of 1. Any function below does the same when
/// called first. Call it before other work: it divides a machine's processors among its ranks.
void init();
int rank();  ///< 0 .. size() - 1.
int size();
/// The transport's name and version, such as "Open MPI v4.1.4"; "" for a single process.
std::string transport();
/// Waits until all ranks have called it.
void barrier();
/// Prints the rank and the reason on stderr and ends all ranks: for errors that one rank cannot
/// recover from.
[[noreturn]] void abort(const std::string& why);
/// How long a collective waits for another rank before it throws; 60 s by default or, if set,
/// BRRR_DIST_LIMIT seconds.
void set_limit(double seconds);

/// Traffic over MPI so far; transfers between GPUs by NCCL are not counted.
struct Stats {
  uint64_t exchanges = 0, bytes_sent = 0;
  double in_flight_s = 0;  ///< Time in which at least one exchange was under way.
  double waited_s = 0;     ///< Time that the computation waited for one: not overlapped.
};
Stats stats();

}  // namespace brrr::dist
