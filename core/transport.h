#pragma once
// What carries bytes between the processes of a run: a module, brrr_mpi, that is opened like a
// GPU's. One thread calls it.

#include <cstddef>

namespace brrr {

/// Bytes in a row. A message is a list of them.
struct Piece {
  void* at;
  size_t bytes;
};

/// The boundary of the module: no exception and no C++ type crosses it.
struct Transport {
  int rank, size;              ///< Of this process, of the run.
  int local_rank, local_size;  ///< Among those on this machine that may use the same processors.
  const char* version;         ///< "Open MPI v4.1.4".
  /// A message to, or from, a peer, which may be sent many times; null: see error(). Messages of
  /// one tag, at most 32767, arrive in order between two ranks.
  void* (*send)(const Piece* pieces, int n, int peer, int tag);
  void* (*receive)(const Piece* pieces, int n, int peer, int tag);
  /// Begins; the memory must stay until test() has said 1. False: see error().
  bool (*start)(void* request);
  /// 1: done, it may start again; 0: not yet; -1: it failed, see error().
  int (*test)(void* request);
  const char* (*error)();
  /// One that is under way and that nobody waits for any more: it is waited for, a while.
  void (*cancel)(void* request);
  void (*release)(void* request);  ///< One that is not under way.
  /// Ends the whole run at once.
  void (*abort)(int code);
  /// Every rank does this at its end, and waits for the others.
  void (*finish)();
};
/// What the module exports, as `extern "C" const brrr::TransportModule* brrr_mpi_boundary();`
struct TransportModule {
  int abi;  ///< kTransportAbi of the build.
  /// Joins the run; null, and why, where that fails.
  const Transport* (*join)(const char** why);
};
inline constexpr int kTransportAbi = 3;

/// Joins the run that the environment tells of (mpirun, srun); null outside of one. Throws
/// brrr::Error, saying what to install, if there is a run and no module. For the one thread.
const Transport* join_run();
/// How many processes the environment tells of: 1 outside of a run.
int ranks_of_environment();
/// This one's number in words of the environment; 0 outside of a run.
int rank_of_environment();

}  // namespace brrr
