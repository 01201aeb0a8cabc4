#pragma once
// How the parts of the module say what went wrong: by exceptions, which become words at the
// boundary. Every status of the Toolkit goes through `check`.

#include <cublasLt.h>
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <nvrtc.h>

#include "backends/cuda/driver.h"
#include "core/check.h"
#include "core/moved.h"

namespace brrr::cuda {

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

}  // namespace brrr::cuda

/// Calls a function of the Toolkit, whose name the words of a failure begin with.
#define BRRR_CALL(function, ...) ::brrr::cuda::check(function(__VA_ARGS__), #function)
