#pragma once
// The boundary between brrr and a module that carries bytes between GPUs: a struct of function
// pointers. No exception and no C++ type crosses it. The module brrr_nccl implements it with NCCL;
// tests/emulator implements it for emulated devices.
//
// Every function returns null or an error message, which is valid until the thread's next call.

#include <cstddef>

#include "backends/cuda/driver.h"

namespace brrr::nccl {

/// Increment whenever anything below or the CUDA module's Stream changes.
inline constexpr int kAbi = 2;
inline constexpr size_t kIdBytes = 128;

using cuda::Failure;
using cuda::Stream;

struct Communicator;  ///< Connects one GPU of each process of a run.

/// A module exports it through `extern "C" const brrr::nccl::Boundary* brrr_nccl_boundary();`
struct Boundary {
  int abi;  ///< kAbi of the build.
  Failure (*make_id)(char id[kIdBytes]);
  /// Collective: all processes call it together, each with its first visible GPU, already open.
  Failure (*join)(const char id[kIdBytes], int rank, int ranks, Communicator** c);
  /// Sends and receives by this thread from here on are queued at the end of the group, and make
  /// progress together. All ranks queue the same groups in the same order. Groups can be captured.
  /// The n-th send to a peer matches the n-th receive there and has the same length.
  Failure (*begin_group)();
  Failure (*send)(Communicator* c, const void* at, size_t bytes, int peer, Stream* s);
  Failure (*receive)(Communicator* c, void* at, size_t bytes, int peer, Stream* s);
  Failure (*end_group)();
  /// The asynchronous error of the communicator, if any. Any thread may call it.
  Failure (*state)(Communicator* c);
};

}  // namespace brrr::nccl
