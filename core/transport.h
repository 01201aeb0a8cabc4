#pragma once
// Carries bytes between the processes of a run: a module, brrr_mpi, that is opened like a GPU's.
// Only one thread calls it.

#include <cstddef>

namespace brrr {

/// Contiguous bytes. A message is a list of pieces.
struct Piece {
  void* at;
  size_t bytes;
};

/// The boundary of the module: no exception and no C++ type crosses it.
struct Transport {
  int rank, size;              ///< Of this process, of the run.
  int local_rank, local_size;  ///< Among those on this machine that may use the same processors.
  const char* version;         ///< "Open MPI v4.1.4".
  /// A message to, or from, a peer, which may be started many times; null: see error(). Messages of
  /// one tag, at most 32767, arrive in order between two ranks.
  void* (*send)(const Piece* pieces, int n, int peer, int tag);
  void* (*receive)(const Piece* pieces, int n, int peer, int tag);
  /// Starts a request; its memory must stay until test() has returned 1. False: see error().
  bool (*start)(void* request);
  /// 1: done, it may be started again; 0: not yet; -1: it failed, see error().
  int (*test)(void* request);
  const char* (*error)();
  /// Abandons a request that is under way: waits for it, for a while.
  void (*cancel)(void* request);
  void (*release)(void* request);  ///< Of a request that is not under way.
  /// Ends the whole run at once.
  void (*abort)(int code);
  /// Every rank calls it at its end; it waits for the others.
  void (*finish)();
};
/// What the module exports, as `extern "C" const brrr::TransportModule* brrr_mpi_boundary();`
struct TransportModule {
  int abi;  ///< kTransportAbi of the build.
  /// Joins the run; null, and why, where that fails.
  const Transport* (*join)(const char** why);
};
inline constexpr int kTransportAbi = 3;

/// Joins the run that the environment describes (mpirun, srun); null outside of one. Throws
/// brrr::Error, saying what to install, if there is a run and no module. Called by one thread only.
const Transport* join_run();
/// The number of processes that the environment describes: 1 outside of a run.
int ranks_of_environment();
/// This process's rank according to the environment; 0 outside of a run.
int rank_of_environment();

}  // namespace brrr
