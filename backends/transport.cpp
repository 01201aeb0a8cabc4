// Finds and opens the module that talks to the other processes.
#include "core/transport.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "backends/cpu/pool.h"
#include "backends/module_path.h"
#include "core/check.h"

namespace brrr {

// The value of the first that is there, else `none`.
static int first_of(std::initializer_list<const char*> names, int none) {
  for (const char* name : names) {
    if (const char* value = std::getenv(name)) return std::atoi(value);
  }
  return none;
}

// By Open MPI, by MPICH and its kin, by SLURM's srun.
int ranks_of_environment() {
  // A batch script sees the number of tasks as well: only srun gives each a number and a step.
  const int tasks = std::getenv("SLURM_PROCID") ? first_of({"SLURM_STEP_NUM_TASKS"}, 1) : 1;
  return std::max(1, first_of({"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE"}, tasks));
}

int rank_of_environment() {
  return first_of({"OMPI_COMM_WORLD_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK", "SLURM_PROCID"}, 0);
}

// Ranks that may use the same processors share them: each takes as many threads as there are for
// it, and keeps to those. Where a launcher has bound each to its own, none shares.
static void share_processors(int place, int sharing) {
  cpu_set_t all;
  CPU_ZERO(&all);
  if (const char* own = std::getenv("BRRR_NUM_THREADS"); own && *own) return;
  if (sched_getaffinity(0, sizeof all, &all) != 0) return;
  const int each = CPU_COUNT(&all) / sharing;
  cpu::set_num_threads(std::max(1, each));
  if (sharing == 1 || each == 0) return;
  cpu_set_t own;
  CPU_ZERO(&own);
  for (int cpu = 0, number = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &all)) continue;
    if (number++ / each == place) CPU_SET(cpu, &own);
  }
  sched_setaffinity(getpid(), sizeof own, &own);
}

const Transport* join_run() {
  if (ranks_of_environment() == 1) return nullptr;
  std::string why;
  const auto* const module = static_cast<const TransportModule*>(
      open_boundary("libbrrr_mpi.so", "BRRR_MPI_MODULE", "brrr_mpi_boundary", kTransportAbi, why));
  BRRR_CHECK(module,
             "dist: started as one of {} processes, but {}; install MPI (on Debian "
             "libopenmpi-dev) and build brrr again, or set BRRR_MPI_MODULE to where it is",
             ranks_of_environment(), why);
  const char* failure = nullptr;
  const Transport* t = module->join(&failure);
  BRRR_CHECK(t, "dist: {}", failure ? failure : "MPI did not start");
  BRRR_CHECK(
      t->size == ranks_of_environment(),
      "dist: started as one of {} processes, but {} knows of {}: start it with the mpirun of "
      "that MPI, or srun --mpi=pmix",
      ranks_of_environment(), t->version, t->size);
  share_processors(t->local_rank, t->local_size);
  return t;
}

}  // namespace brrr
