// The device: memory, streams, events, copies by the runtime; code and launches by the driver,
// whose functions are looked up when a device is opened, so that the module loads without one.

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <vector>

#include "backends/cuda/module/module.h"

namespace brrr::cuda {

namespace {

constexpr size_t log_bytes = 4096;

// What the module uses of the driver itself.
struct DriverCalls {
  decltype(&::cuCtxGetCurrent) current_context = DriverFunction{"cuCtxGetCurrent"};
  decltype(&::cuGetErrorName) error_name = DriverFunction{"cuGetErrorName"};
  decltype(&::cuGetErrorString) error_text = DriverFunction{"cuGetErrorString"};
  decltype(&::cuModuleLoadDataEx) load = DriverFunction{"cuModuleLoadDataEx"};
  decltype(&::cuModuleUnload) unload = DriverFunction{"cuModuleUnload"};
  // Not in drivers for less than CUDA 12.4.
  decltype(&::cuModuleGetFunctionCount) count = DriverFunction{"cuModuleGetFunctionCount", 12040};
  decltype(&::cuModuleEnumerateFunctions) kernels =
      DriverFunction{"cuModuleEnumerateFunctions", 12040};
  decltype(&::cuFuncLoad) load_function = DriverFunction{"cuFuncLoad", 12040};
  decltype(&::cuModuleGetFunction) function = DriverFunction{"cuModuleGetFunction"};
  decltype(&::cuFuncGetAttribute) attribute = DriverFunction{"cuFuncGetAttribute"};
  decltype(&::cuFuncSetAttribute) set_attribute = DriverFunction{"cuFuncSetAttribute"};
  decltype(&::cuLaunchKernel) launch = DriverFunction{"cuLaunchKernel"};
};

// Written once, by open(), which comes before everything else.
struct {
  std::optional<DriverCalls> calls;
  int major = 0, minor = 0;
  CUcontext context = nullptr;
} here;

std::string written(int version) {
  return fmt::format("{}.{}", version / 1000, version / 10 % 100);
}

int driver_version() {
  int version = 0;  // stays so where there is no driver
  BRRR_CALL(cudaDriverGetVersion, &version);
  return version;
}

// Says in words why there is none.
void expect_device() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaErrorInsufficientDriver) {
    cudaGetLastError();
    const int version = driver_version();
    if (version == 0) fail("no NVIDIA driver: libcuda.so.1 is not found or does not load");
    fail("the NVIDIA driver is too old: it supports CUDA {}, brrr was built with CUDA {}",
         written(version), written(CUDART_VERSION));
  }
  if (status == cudaErrorNoDevice) {
    cudaGetLastError();
    fail("an NVIDIA driver but no GPU is visible (see nvidia-smi and CUDA_VISIBLE_DEVICES)");
  }
  check(status, "cudaGetDeviceCount");
}

Properties properties() {
  cudaDeviceProp found{};
  BRRR_CALL(cudaGetDeviceProperties, &found, kDevice);
  auto attribute = [&](cudaDeviceAttr which) {
    int value = 0;
    BRRR_CALL(cudaDeviceGetAttribute, &value, which, kDevice);
    return value;
  };
  Properties p{};
  std::string_view(found.name).copy(p.name, sizeof p.name - 1);
  p.major = found.major;
  p.minor = found.minor;
  p.multiprocessors = found.multiProcessorCount;
  p.shared_bytes = static_cast<int>(found.sharedMemPerBlockOptin);
  p.memory_bytes = found.totalGlobalMem;
  // Two transfers a clock; kHz and bits.
  p.memory_bandwidth = 2e3 * attribute(cudaDevAttrMemoryClockRate) *
                       (attribute(cudaDevAttrGlobalMemoryBusWidth) / 8.0);
  static_assert(sizeof p.uuid == sizeof found.uuid);
  std::memcpy(p.uuid, &found.uuid, sizeof p.uuid);
  p.driver_version = driver_version();
  BRRR_CALL(cudaRuntimeGetVersion, &p.runtime_version);
  return p;
}

Failure open(Properties* found) {
  return guarded([&] {
    refuse_in_capture("open");
    static std::mutex mutex;
    const std::lock_guard lock(mutex);
    expect_device();
    *found = properties();
    if (here.context) return;
    BRRR_CALL(cudaSetDevice, kDevice);
    here.calls.emplace();
    here.major = found->major;
    here.minor = found->minor;
    check(here.calls->current_context(&here.context), "cuCtxGetCurrent");
  });
}

// --- Memory --------------------------------------------------------------------------------------

Failure allocate(void** p, size_t bytes) {
  *p = nullptr;
  return on_device([&] {
    if (!enough(cudaMalloc(p, bytes), "cudaMalloc")) *p = nullptr;
  });
}

Failure release(void* p) {
  return on_device([&] { BRRR_CALL(cudaFree, p); });
}

Failure allocate_pinned(void** p, size_t bytes) {
  return on_device([&] { BRRR_CALL(cudaHostAlloc, p, bytes, cudaHostAllocDefault); });
}

Failure memory(size_t* free, size_t* total) {
  return on_device([&] { BRRR_CALL(cudaMemGetInfo, free, total); });
}

Failure copy(void* to, const void* from, size_t bytes, Way way, Stream* s) {
  const cudaMemcpyKind kind = way == Way::ToDevice ? cudaMemcpyHostToDevice
                              : way == Way::ToHost ? cudaMemcpyDeviceToHost
                                                   : cudaMemcpyDeviceToDevice;
  return in_stream(s, [&](cudaStream_t stream) {
    if (bytes == 0) return;
    if (way != Way::OnDevice) refuse_pageable(way == Way::ToDevice ? from : to);
    BRRR_CALL(cudaMemcpyAsync, to, from, bytes, kind, stream);
  });
}

Failure fill(void* to, unsigned char value, size_t bytes, Stream* s) {
  return in_stream(s, [&](cudaStream_t stream) {
    if (bytes > 0) BRRR_CALL(cudaMemsetAsync, to, value, bytes, stream);
  });
}

// --- Streams and events --------------------------------------------------------------------------

cudaEvent_t event_of(Event* e) { return reinterpret_cast<cudaEvent_t>(e); }

Failure make_stream(Stream** s) {
  return on_device([&] {
    cudaStream_t made = nullptr;
    BRRR_CALL(cudaStreamCreateWithFlags, &made, cudaStreamNonBlocking);
    *s = reinterpret_cast<Stream*>(made);
  });
}

Failure synchronize(Stream* s) {
  return on_device([&] { BRRR_CALL(cudaStreamSynchronize, stream_of(s)); });
}

Failure make_event_with(unsigned flags, Event** e) {
  return on_device([&] {
    cudaEvent_t made = nullptr;
    BRRR_CALL(cudaEventCreateWithFlags, &made, flags);
    *e = reinterpret_cast<Event*>(made);
  });
}
Failure make_event(Event** e) { return make_event_with(cudaEventDisableTiming, e); }
Failure make_timer(Event** e) { return make_event_with(cudaEventDefault, e); }

Failure record(Event* e, Stream* s) {
  return in_stream(s, [&](cudaStream_t stream) {
    BRRR_CALL(cudaEventRecord, event_of(e), stream);
    note_event(event_of(e));
  });
}

Failure await(Stream* s, Event* e) {
  return guarded([&] {
    enter();
    const cudaStream_t stream = stream_of(s);
    admit_stream(stream, event_of(e));
    BRRR_CALL(cudaStreamWaitEvent, stream, event_of(e), 0);
  });
}

Failure wait(Event* e) {
  return on_device([&] { BRRR_CALL(cudaEventSynchronize, event_of(e)); });
}

Failure reached(Event* e, bool* yes) {
  return on_device([&] {
    const cudaError_t status = cudaEventQuery(event_of(e));
    *yes = status == cudaSuccess;
    if (status == cudaErrorNotReady) {
      cudaGetLastError();
    } else {
      check(status, "cudaEventQuery");
    }
  });
}

Failure elapsed(Event* from, Event* to, float* milliseconds) {
  return on_device(
      [&] { BRRR_CALL(cudaEventElapsedTime, milliseconds, event_of(from), event_of(to)); });
}

// --- Code and launches ---------------------------------------------------------------------------

// The driver may leave a kernel's code to its first use. That may be within a capture, and a kernel
// that is not loaded has no attributes: all are loaded now. Drivers that know no such calls load a
// kernel when it is looked up.
bool load_kernels(CUmodule module) {
  const DriverCalls& e = *here.calls;
  if (!e.count || !e.kernels || !e.load_function) return true;
  unsigned count = 0;
  check(e.count(&count, module), "cuModuleGetFunctionCount");
  std::vector<CUfunction> kernels(count);
  check(e.kernels(kernels.data(), count, module), "cuModuleEnumerateFunctions");
  return std::all_of(kernels.begin(), kernels.end(),
                     [&](CUfunction k) { return enough(e.load_function(k), "cuFuncLoad"); });
}

Failure load(const void* image, size_t bytes, Module** m) {
  *m = nullptr;
  return on_device([&] {
    const std::string code(static_cast<const char*>(image), bytes);  // PTX has to end with a 0
    char log[log_bytes] = "";
    CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    void* values[] = {log, reinterpret_cast<void*>(log_bytes)};
    CUmodule loaded = nullptr;
    const CUresult status = here.calls->load(&loaded, code.c_str(), 2, options, values);
    if (status == CUDA_ERROR_OUT_OF_MEMORY) return;
    if (status != CUDA_SUCCESS) {
      const char* name = nullptr;
      here.calls->error_name(status, &name);
      fail("cuModuleLoadDataEx: {}; {}\n{}", name ? name : "unknown error",
           versions(here.major, here.minor), log);
    }
    std::unique_ptr<CUmod_st, decltype(DriverCalls::unload)> owner(loaded, here.calls->unload);
    if (load_kernels(loaded)) *m = reinterpret_cast<Module*>(owner.release());
  });
}

Failure unload(Module* m) {
  return on_device(
      [&] { check(here.calls->unload(reinterpret_cast<CUmodule>(m)), "cuModuleUnload"); });
}

Failure function(Module* m, const char* name, size_t shared_bytes, Function** f) {
  return on_device([&] {
    CUfunction found = nullptr;
    check(here.calls->function(&found, reinterpret_cast<CUmodule>(m), name), "cuModuleGetFunction");
    // More than 48 KB a block, the kernel's own included, is to be asked for.
    constexpr CUfunction_attribute most = CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    int allowed = 0;
    check(here.calls->attribute(&allowed, most, found), "cuFuncGetAttribute");
    if (shared_bytes > static_cast<size_t>(allowed)) {
      check(here.calls->set_attribute(found, most, static_cast<int>(shared_bytes)),
            "cuFuncSetAttribute");
    }
    *f = reinterpret_cast<Function*>(found);
  });
}

// The driver knows the size of the argument from the kernel's code.
Failure launch(Function* f, const unsigned grid[3], const unsigned block[3], size_t shared_bytes,
               const void* arguments, size_t /*bytes*/, Stream* s) {
  return in_stream(s, [&](cudaStream_t stream) {
    void* parameters[] = {const_cast<void*>(arguments)};
    check(here.calls->launch(reinterpret_cast<CUfunction>(f), grid[0], grid[1], grid[2], block[0],
                             block[1], block[2], static_cast<unsigned>(shared_bytes), stream,
                             parameters, nullptr),
          "cuLaunchKernel");
  });
}

constexpr Driver driver{.abi = kAbi,
                        .name = "cuda",
                        .open = open,
                        .allocate = allocate,
                        .release = release,
                        .allocate_pinned = allocate_pinned,
                        .memory = memory,
                        .make_stream = make_stream,
                        .synchronize = synchronize,
                        .make_event = make_event,
                        .record = record,
                        .wait = wait,
                        .reached = reached,
                        .await = await,
                        .make_timer = make_timer,
                        .elapsed = elapsed,
                        .copy = copy,
                        .fill = fill,
                        .load = load,
                        .unload = unload,
                        .function = function,
                        .launch = launch,
                        .begin_capture = begin_capture,
                        .end_capture = end_capture,
                        .upload = upload,
                        .launch_graph = launch_graph,
                        .release_graph = release_graph,
                        .arena = arena,
                        .compile = compile,
                        .compiler_version = compiler_version,
                        .choose = choose,
                        .multiply = multiply};

}  // namespace

void* find_in_driver(const char* name, [[maybe_unused]] int version) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
#if CUDART_VERSION >= 12050
  BRRR_CALL(cudaGetDriverEntryPointByVersion, name, &found, static_cast<unsigned>(version),
            cudaEnableDefault, &result);
#else
  BRRR_CALL(cudaGetDriverEntryPoint, name, &found, cudaEnableDefault, &result);
#endif
  return result == cudaDriverEntryPointSuccess ? found : nullptr;
}

void enter() {
  if (!here.context) fail("no GPU is open");
  // Asked for each time, because the thread may be new or other code may have changed it.
  CUcontext current = nullptr;
  check(here.calls->current_context(&current), "cuCtxGetCurrent");
  if (current != here.context) BRRR_CALL(cudaSetDevice, kDevice);
}

cudaStream_t stream_of(Stream* s) {
  if (!s) fail("no stream");  // null is the legacy stream, which waits for all others
  return reinterpret_cast<cudaStream_t>(s);
}

std::string versions(int major, int minor) {
  const int driver = driver_version();
  return fmt::format("NVRTC {}, {}, device of compute capability {}.{}",
                     written(compiler_version()),
                     driver ? "driver for CUDA " + written(driver) : "no driver", major, minor);
}

void check(CUresult status, const char* call) {
  if (status == CUDA_SUCCESS) return;
  const char *name = nullptr, *text = nullptr;
  here.calls->error_name(status, &name);
  here.calls->error_text(status, &text);
  fail("{}: {} ({})", call, name ? name : "unknown error", text ? text : "no text");
}

}  // namespace brrr::cuda

/// The module's one exported function.
extern "C" [[gnu::visibility("default")]] const brrr::cuda::Driver* brrr_cuda_boundary() {
  return &brrr::cuda::driver;
}
