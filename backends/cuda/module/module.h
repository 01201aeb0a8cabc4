#pragma once
// Declarations shared by the source files of the module brrr_cuda.

#include <cublasLt.h>
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <nvrtc.h>

#include "backends/cuda/driver.h"
#include "core/check.h"
#include "core/moved.h"

namespace brrr::cuda {

// Errors within the module are exceptions; boundary functions turn them into messages (`guarded`).
// Every status of the Toolkit goes through `check`.

/// Throws with `call`, the error's name and its text unless `status` is success.
void check(cudaError_t status, const char* call);
void check(CUresult status, const char* call);
void check(nvrtcResult status, const char* call);
void check(cublasStatus_t status, const char* call);

/// The same, but returns false if the status is out of memory.
bool enough(cudaError_t status, const char* call);
bool enough(CUresult status, const char* call);

/// A copy of `message`, valid until the thread's next failure. Invalidates the thread's capture.
Failure store_failure(const char* message) noexcept;

/// Invalidates this thread's capture, if any; the first message is kept as the reason.
void invalidate_capture(const char* message) noexcept;

/// Runs the body of a boundary function; an exception becomes the returned failure.
template <class Work> Failure guarded(Work work) noexcept {
  try {
    work();
    return nullptr;
  } catch (const std::exception& error) {
    return store_failure(error.what());
  }
}

inline constexpr int kDevice = 0;  ///< CUDA_VISIBLE_DEVICES chooses which GPU that is.
/// Makes the device opened by `Driver::open` current for the calling thread.
void enter();
cudaStream_t stream_of(Stream* s);
/// Looks up a function of the driver library, which the module does not link, as of a CUDA version;
/// null if the driver is older.
void* find_in_driver(const char* name, int version);
/// Converts to a pointer to the driver function `name`. A function that came after CUDA 12.0
/// (`since`) is null in older drivers; if any other is missing the conversion throws.
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

/// Throw if this thread captures and may not make the call (driver.h), before CUDA sees it.
void refuse_in_capture(const char* call);
void refuse_other_stream(cudaStream_t stream);
void refuse_pageable(const void* host);
/// Adds an event that was recorded to this thread's capture, if any. A stream that is about to
/// await such an event joins the capture.
void note_event(cudaEvent_t event);
void admit_stream(cudaStream_t stream, cudaEvent_t event);

/// The versions of NVRTC, the driver and the device, which must fit each other, for messages.
std::string versions(int major, int minor);

/// Runs `work` on the open device; fails if the calling thread captures.
template <class Work> Failure on_device(Work work, const char* call = __builtin_FUNCTION()) {
  return guarded([&] {
    refuse_in_capture(call);
    enter();
    work();
  });
}

/// Runs `work`, which queues on `s`; during a capture by this thread it is captured.
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

/// Calls a function of the Toolkit and throws if it fails; the message begins with its name.
#define BRRR_CALL(function, ...) ::brrr::cuda::check(function(__VA_ARGS__), #function)
