// The device: memory, streams, events and copies by the CUDA runtime; code and launches by the
// driver API, whose functions are looked up in open(), so that the module loads without a driver.

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

// The functions of the driver API that this file uses.
struct DriverCalls {
  decltype(&::cuCtxGetCurrent) current_context = DriverFunction{"cuCtxGetCurrent"};
  decltype(&::cuGetErrorName) error_name = DriverFunction{"cuGetErrorName"};
  decltype(&::cuGetErrorString) error_text = DriverFunction{"cuGetErrorString"};
  decltype(&::cuModuleLoadDataEx) load = DriverFunction{"cuModuleLoadDataEx"};
  decltype(&::cuModuleUnload) unload = DriverFunction{"cuModuleUnload"};
  // Null in drivers older than CUDA 12.4.
  decltype(&::cuModuleGetFunctionCount) count = DriverFunction{"cuModuleGetFunctionCount", 12040};
  decltype(&::cuModuleEnumerateFunctions) kernels =
      DriverFunction{"cuModuleEnumerateFunctions", 12040};
  decltype(&::cuFuncLoad) load_function = DriverFunction{"cuFuncLoad", 12040};
  decltype(&::cuModuleGetFunction) function = DriverFunction{"cuModuleGetFunction"};
  decltype(&::cuFuncGetAttribute) attribute = DriverFunction{"cuFuncGetAttribute"};
  decltype(&::cuFuncSetAttribute) set_attribute = DriverFunction{"cuFuncSetAttribute"};
  decltype(&::cuLaunchKernel) launch = DriverFunction{"cuLaunchKernel"};
};

// Written once, by open(), which is called before everything else.
struct {
  std::optional<DriverCalls> calls;
  int major = 0, minor = 0;
  CUcontext context = nullptr;
} state;

std::string dotted(int version) { return fmt::format("{}.{}", version / 1000, version / 10 % 100); }

int driver_version() {
  int version = 0;  // stays 0 without a driver
  BRRR_CALL(cudaDriverGetVersion, &version);
  return version;
}

// Throws if no device can be used, saying why.
void expect_device() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaErrorInsufficientDriver) {
    cudaGetLastError();
    const int version = driver_version();
    if (version == 0) fail("no NVIDIA driver: libcuda.so.1 is not found or does not load");
    fail("the NVIDIA driver is too old: it supports CUDA {}, brrr was built with CUDA {}",
         dotted(version), dotted(CUDART_VERSION));
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
  // Double data rate: two transfers per clock; the attributes are in kHz and bits.
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
    if (state.context) return;
    BRRR_CALL(cudaSetDevice, kDevice);
    state.calls.emplace();
    state.major = found->major;
    state.minor = found->minor;
    check(state.calls->current_context(&state.context), "cuCtxGetCurrent");
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

// Loads all kernels now: the driver may load lazily, on first use, which may be within a capture,
// and a kernel that is not loaded has no attributes. Drivers without these functions load a kernel
// when it is looked up.
bool load_kernels(CUmodule module) {
  const DriverCalls& e = *state.calls;
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
    const std::string code(static_cast<const char*>(image), bytes);  // PTX must be 0-terminated
    char log[log_bytes] = "";
    CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    void* values[] = {log, reinterpret_cast<void*>(log_bytes)};
    CUmodule loaded = nullptr;
    const CUresult status = state.calls->load(&loaded, code.c_str(), 2, options, values);
    if (status == CUDA_ERROR_OUT_OF_MEMORY) return;
    if (status != CUDA_SUCCESS) {
      const char* name = nullptr;
      state.calls->error_name(status, &name);
      fail("cuModuleLoadDataEx: {}; {}\n{}", name ? name : "unknown error",
           versions(state.major, state.minor), log);
    }
    std::unique_ptr<CUmod_st, decltype(DriverCalls::unload)> owner(loaded, state.calls->unload);
    if (load_kernels(loaded)) *m = reinterpret_cast<Module*>(owner.release());
  });
}

Failure unload(Module* m) {
  return on_device(
      [&] { check(state.calls->unload(reinterpret_cast<CUmodule>(m)), "cuModuleUnload"); });
}

Failure function(Module* m, const char* name, size_t shared_bytes, Function** f) {
  return on_device([&] {
    CUfunction found = nullptr;
    check(state.calls->function(&found, reinterpret_cast<CUmodule>(m), name),
          "cuModuleGetFunction");
    // More than 48 KB per block, static shared memory included, needs opting in.
    constexpr CUfunction_attribute most = CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    int allowed = 0;
    check(state.calls->attribute(&allowed, most, found), "cuFuncGetAttribute");
    if (shared_bytes > static_cast<size_t>(allowed)) {
      check(state.calls->set_attribute(found, most, static_cast<int>(shared_bytes)),
            "cuFuncSetAttribute");
    }
    *f = reinterpret_cast<Function*>(found);
  });
}

// `bytes` is unused: the driver knows the argument's size from the kernel's code.
Failure launch(Function* f, const unsigned grid[3], const unsigned block[3], size_t shared_bytes,
               const void* arguments, size_t /*bytes*/, Stream* s) {
  return in_stream(s, [&](cudaStream_t stream) {
    void* parameters[] = {const_cast<void*>(arguments)};
    check(state.calls->launch(reinterpret_cast<CUfunction>(f), grid[0], grid[1], grid[2], block[0],
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
  if (!state.context) fail("no GPU is open");
  // Checked every time: the thread may be new, or other code may have changed its context.
  CUcontext current = nullptr;
  check(state.calls->current_context(&current), "cuCtxGetCurrent");
  if (current != state.context) BRRR_CALL(cudaSetDevice, kDevice);
}

cudaStream_t stream_of(Stream* s) {
  if (!s) fail("no stream");  // null would be the legacy stream, which synchronises with others
  return reinterpret_cast<cudaStream_t>(s);
}

std::string versions(int major, int minor) {
  const int driver = driver_version();
  return fmt::format("NVRTC {}, {}, device of compute capability {}.{}", dotted(compiler_version()),
                     driver ? "driver for CUDA " + dotted(driver) : "no driver", major, minor);
}

void check(CUresult status, const char* call) {
  if (status == CUDA_SUCCESS) return;
  const char *name = nullptr, *text = nullptr;
  state.calls->error_name(status, &name);
  state.calls->error_text(status, &text);
  fail("{}: {} ({})", call, name ? name : "unknown error", text ? text : "no text");
}

}  // namespace brrr::cuda

/// The module's one exported function.
extern "C" [[gnu::visibility("default")]] const brrr::cuda::Driver* brrr_cuda_boundary() {
  return &brrr::cuda::driver;
}
