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

// The value of the first environment variable that is set, else `none`.
static int first_of(std::initializer_list<const char*> names, int none) {
  for (const char* name : names) {
    if (const char* value = std::getenv(name)) return std::atoi(value);
  }
  return none;
}

// Set by Open MPI, MPICH and its derivatives, or SLURM's srun.
int ranks_of_environment() {
  // sbatch also exports the number of tasks; only srun sets a rank and a step for each process.
  const int tasks = std::getenv("SLURM_PROCID") ? first_of({"SLURM_STEP_NUM_TASKS"}, 1) : 1;
  return std::max(1, first_of({"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE"}, tasks));
}

int rank_of_environment() {
  return first_of({"OMPI_COMM_WORLD_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK", "SLURM_PROCID"}, 0);
}

// Divides the CPUs of the affinity mask among the `sharing` ranks that have the same mask: sets the
// thread count to CPUs / ranks and pins the process to those. Ranks bound apart do not share.
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
  BRRR_CHECK(t->size == ranks_of_environment(),
             "dist: started as one of {} processes, but {} reports {}: start it with the mpirun of "
             "that MPI, or srun --mpi=pmix",
             ranks_of_environment(), t->version, t->size);
  share_processors(t->local_rank, t->local_size);
  return t;
}

}  // namespace brrr
