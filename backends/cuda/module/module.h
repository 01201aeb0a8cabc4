#pragma once
// What the parts of the module offer each other.

#include <cublasLt.h>
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <nvrtc.h>

#include "backends/cuda/driver.h"
#include "core/check.h"
#include "core/moved.h"

namespace brrr::cuda {

// How they say what went wrong: by exceptions, which become words at the boundary. Every status of
// the Toolkit goes through `check`.

/// Throws with `call`, the error's name and its text unless `status` is success.
void check(cudaError_t status, const char* call);
void check(CUresult status, const char* call);
void check(nvrtcResult status, const char* call);
void check(cublasStatus_t status, const char* call);

/// The same, but false when there was not enough memory.
bool enough(cudaError_t status, const char* call);
bool enough(CUresult status, const char* call);

/// `words` until the thread's next failure.
Failure keep(const char* words) noexcept;

/// A capture of this thread gives no graph; `words` say why, unless earlier ones do.
void spoil_capture(const char* words) noexcept;

/// Does the work of a boundary function.
template <class Work> Failure guarded(Work work) noexcept {
  try {
    work();
    return nullptr;
  } catch (const std::exception& error) {
    return keep(error.what());
  }
}

inline constexpr int kDevice = 0;  ///< CUDA_VISIBLE_DEVICES chooses which that is.
/// The thread's next calls act on the device that `Driver::open` has opened.
void enter();
cudaStream_t stream_of(Stream* s);
/// A function of the driver, which the module does not link, as of a version of CUDA; null where
/// the driver is older.
void* find_in_driver(const char* name, int version);
/// One that a pointer to it is made from: null where a driver is older than `since`, if that is
/// not what all drivers are; else it fails where there is none.
struct DriverFunction {
  static constexpr int kAll = 12000;
  const char* name;
  int since = kAll;
  template <class F> operator F*() const {  // NOLINT(google-explicit-constructor)
    void* const found = find_in_driver(name, since);
    if (!found && since == kAll) fail("the NVIDIA driver has no function {}", name);
    return reinterpret_cast<F*>(found);
  }
};

/// What a thread may not ask for while it captures fails in words, before CUDA sees it.
void refuse_in_capture(const char* call);
void refuse_other_stream(cudaStream_t stream);
void refuse_pageable(const void* host);
/// A capture of this thread has recorded the event; a stream that is about to await one belongs to
/// the capture from then on.
void note_event(cudaEvent_t event);
void admit_stream(cudaStream_t stream, cudaEvent_t event);

/// The versions that have to fit each other, for the words of a failure.
std::string versions(int major, int minor);

/// Does `work` on the open device, which a thread that captures may not.
template <class Work> Failure on_device(Work work, const char* call = __builtin_FUNCTION()) {
  return guarded([&] {
    refuse_in_capture(call);
    enter();
    work();
  });
}

/// Queues by `work` on `s`, which a capture of this thread notes.
template <class Work> Failure in_stream(Stream* s, Work work) {
  return guarded([&] {
    enter();
    const cudaStream_t stream = stream_of(s);
    refuse_other_stream(stream);
    work(stream);
  });
}

Failure begin_capture(Stream* s);
Failure end_capture(Stream* s, Graph** g, size_t* nodes);
Failure upload(Graph* g, Stream* s, bool* done, size_t* bytes);
Failure launch_graph(Graph* g, Stream* s);
Failure release_graph(Graph* g);

Failure arena(size_t bytes, void** begin, bool* done);

Failure compile(const char* source, const char* name, int major, int minor, const char** image,
                size_t* bytes);
int compiler_version();

Failure choose(const GemmShape* shape, size_t workspace_bytes, Gemm** gemm);
Failure multiply(Gemm* gemm, const void* a, const void* b, void* c, void* workspace,
                 size_t workspace_bytes, Stream* s);

}  // namespace brrr::cuda

/// Calls a function of the Toolkit, whose name the words of a failure begin with.
#define BRRR_CALL(function, ...) ::brrr::cuda::check(function(__VA_ARGS__), #function)
