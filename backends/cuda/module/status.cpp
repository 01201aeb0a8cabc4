#include "backends/cuda/module/module.h"
#include "core/thread_own.h"

namespace brrr::cuda {

void check(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // clears it: a later call, perhaps by other code, would report it again
  fail("{}: {} ({})", call, cudaGetErrorName(status), cudaGetErrorString(status));
}

bool enough(cudaError_t status, const char* call) {
  if (status != cudaErrorMemoryAllocation) return check(status, call), true;
  cudaGetLastError();
  return false;
}

bool enough(CUresult status, const char* call) {
  if (status != CUDA_ERROR_OUT_OF_MEMORY) return check(status, call), true;
  return false;
}

void check(nvrtcResult status, const char* call) {
  if (status != NVRTC_SUCCESS) fail("{}: {}", call, nvrtcGetErrorString(status));
}

void check(cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  fail("{}: {} ({})", call, cublasLtGetStatusName(status), cublasLtGetStatusString(status));
}

Failure store_failure(const char* message) noexcept {
  struct Stored : std::string {};
  invalidate_capture(message);
  try {
    return thread_own<Stored>().assign(message).c_str();
  } catch (const std::bad_alloc&) {
    return "out of host memory";
  }
}

}  // namespace brrr::cuda
