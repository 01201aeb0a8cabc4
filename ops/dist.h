#pragma once
// The processes of a run, and which of them this one is.

#include <cstdint>
#include <string>

namespace brrr::dist {

/// Joins the other processes if mpirun or srun has started this one; else it is rank 0 of 1, and
/// nothing is done. The first call below does the same. Before other work: ranks on one machine
/// share its processors. Throws brrr::Error when MPI is wanted and was not there at build time.
void init();
int rank();  ///< 0 .. size() - 1.
int size();
/// "Open MPI v4.1.4"; "" for a process alone.
std::string transport();
/// Until all ranks have come here.
void barrier();
/// Says why on stderr, with the rank's number, and ends all ranks: for errors that one of them
/// cannot recover from.
[[noreturn]] void abort(const std::string& why);
/// How long a collective waits for another rank before it throws, 60 s to begin with
/// (BRRR_DIST_LIMIT).
void set_limit(double seconds);

/// What MPI has carried so far; GPUs that send to each other by NCCL are not counted.
struct Stats {
  uint64_t exchanges = 0, bytes_sent = 0;
  double under_way_s = 0;  ///< While at least one was.
  double waited_s = 0;     ///< By the computation: what was not hidden.
};
Stats stats();

}  // namespace brrr::dist
