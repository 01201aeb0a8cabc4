// The module brrr_nccl, the only code that needs NCCL.
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstring>
#include <string>

#include "backends/nccl/collective.h"
#include "core/thread_own.h"

namespace brrr::nccl {

struct Communicator {
  ncclComm_t nccl = nullptr;
};

static Failure describe(const char* call, const char* name, const char* text) {
  struct Text : std::string {};
  std::string& error = thread_own<Text>();
  error = std::string(call) + ": " + name + (text && *text ? std::string(" (") + text + ")" : "");
  return error.c_str();
}
static Failure check(ncclResult_t result, const char* call, ncclComm_t c = nullptr) {
  if (result == ncclSuccess) return nullptr;
  return describe(call, ncclGetErrorString(result), ncclGetLastError(c));
}
static Failure check(cudaError_t result, const char* call) {
  if (result == cudaSuccess) return nullptr;
  cudaGetLastError();  // Clears it: a later call would report it again.
  return describe(call, cudaGetErrorName(result), cudaGetErrorString(result));
}

static cudaStream_t stream_of(Stream* s) { return reinterpret_cast<cudaStream_t>(s); }

static Failure make_id(char id[kIdBytes]) {
  static_assert(sizeof(ncclUniqueId) == kIdBytes);
  ncclUniqueId made;
  const Failure failure = check(ncclGetUniqueId(&made), "ncclGetUniqueId");
  if (!failure) std::memcpy(id, &made, kIdBytes);
  return failure;
}

static Failure join(const char id[kIdBytes], int rank, int ranks, Communicator** c) {
  ncclUniqueId made;
  std::memcpy(&made, id, kIdBytes);
  if (const Failure failure = check(cudaSetDevice(0), "cudaSetDevice")) return failure;
  ncclComm_t comm = nullptr;
  const Failure failure = check(ncclCommInitRank(&comm, ranks, made, rank), "ncclCommInitRank");
  *c = failure ? nullptr : new Communicator{comm};
  return failure;
}

static Failure begin_group() { return check(ncclGroupStart(), "ncclGroupStart"); }
static Failure end_group() { return check(ncclGroupEnd(), "ncclGroupEnd"); }

// Only bytes travel through NCCL; brrr's own kernels add.
static Failure send(Communicator* c, const void* at, size_t bytes, int peer, Stream* s) {
  return check(ncclSend(at, bytes, ncclUint8, peer, c->nccl, stream_of(s)), "ncclSend", c->nccl);
}
static Failure receive(Communicator* c, void* at, size_t bytes, int peer, Stream* s) {
  return check(ncclRecv(at, bytes, ncclUint8, peer, c->nccl, stream_of(s)), "ncclRecv", c->nccl);
}

static Failure state(Communicator* c) {
  ncclResult_t found = ncclSuccess;
  const Failure failure = check(ncclCommGetAsyncError(c->nccl, &found), "ncclCommGetAsyncError");
  return failure ? failure : check(found, "NCCL", c->nccl);
}

}  // namespace brrr::nccl

/// The module's one exported function.
extern "C" [[gnu::visibility("default")]] const brrr::nccl::Boundary* brrr_nccl_boundary() {
  using namespace brrr::nccl;
  static const Boundary boundary{.abi = kAbi,
                                 .make_id = make_id,
                                 .join = join,
                                 .begin_group = begin_group,
                                 .send = send,
                                 .receive = receive,
                                 .end_group = end_group,
                                 .state = state};
  return &boundary;
}
