#pragma once
// The boundary between brrr and what carries bytes from GPU to GPU: a struct of function pointers.
// No exception and no C++ type crosses it. The module brrr_nccl fills it with NCCL's functions;
// tests/emulator fills it for emulated devices.
//
// Every function returns null, or what went wrong in words that hold until the thread's next call.

#include <cstddef>

#include "backends/cuda/driver.h"

namespace brrr::nccl {

/// Raised whenever anything below changes, or the CUDA module's Stream.
inline constexpr int kAbi = 2;
inline constexpr size_t kIdBytes = 128;

using cuda::Failure;
using cuda::Stream;

struct Communicator;  ///< One GPU of each process of a run.

/// What a module exports, as `extern "C" const brrr::nccl::Boundary* brrr_nccl_boundary();`
struct Boundary {
  int abi;  ///< kAbi of the build.
  Failure (*make_id)(char id[kIdBytes]);
  /// Every process joins at the same time, with the first GPU that it sees, which is open.
  Failure (*join)(const char id[kIdBytes], int rank, int ranks, Communicator** c);
  /// What this thread sends and receives from here on is queued at the end of the group, as one
  /// that makes progress together. All ranks queue the same groups in the same order; a capture
  /// notes them. The n-th message to a peer is the n-th that the peer receives, and as long.
  Failure (*begin_group)();
  Failure (*send)(Communicator* c, const void* at, size_t bytes, int peer, Stream* s);
  Failure (*receive)(Communicator* c, void* at, size_t bytes, int peer, Stream* s);
  Failure (*end_group)();
  /// What has gone wrong meanwhile, if anything. Any thread may ask.
  Failure (*state)(Communicator* c);
};

}  // namespace brrr::nccl
