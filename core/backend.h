#pragma once
// What a device offers. A plain struct of functions; ops are launched through OpDef, not through
// a method per op.

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/device.h"
#include "core/dtype.h"

namespace brrr {

struct OpCall;
struct DeviceKernel;
struct Variant;
struct Grid;

/// C[M,N] = op(A)[M,K] * op(B)[K,N], row-major with leading dimensions in elements.
struct Gemm {
  DType dtype;
  bool trans_a, trans_b;
  int64_t m, n, k;
  const void* a;
  int64_t lda;
  const void* b;
  int64_t ldb;
  void* c;
  int64_t ldc;
  bool chain = false;            ///< As is_chain() says of the product that this is a part of.
  bool add = false;              ///< The sums of a chain go on from what C holds.
  const void* packed = nullptr;  ///< What Backend::pack_right made of B.
};

/// Text of generated kernels: what several of them use, and each by itself.
struct KernelSource {
  std::string shared;
  std::vector<std::string> kernels;
  std::string all() const {
    std::string text = shared;
    for (const std::string& k : kernels) text += k;
    return text;
  }
};
/// Generated kernels after building: `symbols[i]` is the address of the i-th name asked for.
struct KernelModule;
/// What building cost and where it came from.
struct BuildReport {
  double seconds = 0;
  bool cached = false;  ///< Found on disk, nothing was compiled.
};

/// A piece of host memory, and how far behind the others' common beginning it goes.
struct HostPart {
  const void* from;
  size_t at, bytes;
};

struct DeviceGraph;
struct DeviceMark;
struct HostCopy;
/// What a device offers that runs captured work as one launch.
struct GraphBackend {
  /// From here on what this thread queues is noted instead of run, until end() or abandon().
  void (*begin)();
  /// Throws brrr::Error with what spoilt the capture. Memory that kernels took and gave back
  /// meanwhile stays the graph's.
  DeviceGraph* (*end)(size_t* nodes);
  void (*abandon)() noexcept;  ///< Nothing to do if no capture is going on.
  void (*launch)(DeviceGraph* g);
  void (*release)(DeviceGraph* g) noexcept;
  size_t (*bytes)(DeviceGraph* g);
  /// Queues a kernel of a module that build() made.
  void (*run)(void* kernel, const char* name, const Grid& g, int threads, const void* arguments,
              size_t bytes);
  /// The device's one arena for replays, at least so large; it never moves. Null when there is not
  /// enough memory.
  char* (*arena)(size_t bytes);
  /// Queues the pieces, in the order of their places, as one copy through pinned memory. They may
  /// be changed at once; what lies between them on the device is not kept.
  void (*upload)(void* to, const HostPart* parts, size_t n);
  /// A number for a place in a step, a module path, which notes of faults carry from then on.
  uint32_t (*site)(const std::string& path);
  /// A copy of at most 64 bytes to the host is queued; null when it cannot be.
  HostCopy* (*copy_out)(const void* from, size_t bytes);
  /// Waits for that copy, and for nothing that was queued after it. Throws like copy_to_host.
  void (*read)(HostCopy* c, void* to, size_t offset, size_t bytes);
  void (*drop)(HostCopy* c) noexcept;
};
inline constexpr size_t kEarlyBytes = 64;

/// For messages about memory: how many blocks of so many bytes an owner has, and the first five of
/// them, "; the largest: 2 x 4096 of matmul, 1 x 512 of add".
using Holders = std::map<std::pair<std::string, size_t>, size_t>;
std::string name_largest(const Holders& holders);

struct Backend {
  /// `bytes` of memory aligned to 64, or null when there is none.
  void* (*allocate)(size_t bytes) noexcept;
  void (*deallocate)(void* p, size_t bytes) noexcept;
  /// What a block of `bytes` takes in a row, 0 if it cannot be in one; and a row of n blocks, so
  /// far apart, each to be deallocated by itself, or null. Both null on a GPU.
  size_t (*block_bytes)(size_t bytes) noexcept = nullptr;
  void* (*allocate_row)(const size_t* bytes, size_t n) noexcept = nullptr;
  /// Text for an out-of-memory error: bytes held, cached and free.
  std::string (*describe_memory)();
  MemoryStats (*memory_stats)();
  void (*reset_peak)();
  void (*empty_cache)();
  DeviceProperties (*properties)();
  DeviceLimits (*limits)(bool anew);
  void (*copy_from_host)(void* dst, const void* src, size_t bytes);
  void (*copy_to_host)(void* dst, const void* src, size_t bytes);
  void (*copy)(void* dst, const void* src, size_t bytes);
  /// Runs a call whose outputs have memory: what the op's row has for the device, after its check
  /// of values where those can be seen.
  void (*launch)(OpCall& call);
  void (*gemm)(const Gemm& problem);
  /// Whether each element is one chain of multiply-adds: rows may be computed apart, and terms
  /// added later, without a change of bits. Null on a GPU.
  bool (*is_chain)(const Gemm& problem) = nullptr;
  /// Bytes of B as the product's kernel reads it, where that is a copy; 0: it reads B. Null on a
  /// GPU, as is the next, which makes that copy, for as many products of these sizes as there are.
  int64_t (*packed_right_bytes)(const Gemm& problem) = nullptr;
  void (*pack_right)(const Gemm& problem, void* to) = nullptr;
  /// n products of one shape: operands of product i begin at[3 i], at[3 i + 1] and at[3 i + 2]
  /// elements after A, B and C, on a GPU at even distances. Each has the bits that gemm would give
  /// it.
  void (*gemm_batch)(const Gemm& first, int64_t n, const int64_t* at);
  /// Of the CPU's threads; null on a GPU.
  void (*parallel_for)(int64_t n, int64_t grain, void (*fn)(void*, int64_t, int64_t),
                       void* ctx) = nullptr;
  void (*synchronize)();
  /// Notes a point in the device's queue. Null on the CPU, as is the next.
  DeviceMark* (*mark)() = nullptr;
  /// Microseconds from one mark to another, both of which it waits for. They may be asked again.
  double (*between)(DeviceMark* from, DeviceMark* to) = nullptr;
  void (*drop_mark)(DeviceMark* m) noexcept = nullptr;
  /// Builds kernel text (without the prelude) and keeps it loaded until `unload`. Throws
  /// brrr::Error with the compiler's words when that fails or there is no compiler.
  KernelModule* (*build)(const KernelSource& source, BuildReport& report);
  void* (*symbol)(KernelModule* m, const char* name);
  void (*unload)(KernelModule* m) noexcept;
  /// Queues a kernel given as text (core/device_kernel.h). Null on the CPU.
  void (*run_kernel)(const DeviceKernel& k, const Variant& v, const Grid& g, const void* arguments,
                     size_t bytes) = nullptr;
  /// Where kernels note an index that is out of range (core/device_kernel.h). Null on the CPU.
  char* (*fault)() = nullptr;
  const GraphBackend* graphs = nullptr;  ///< Null on the CPU.
};

namespace detail {
// Set once each, before first use of the device.
inline const Backend* backends[kDeviceTypes] = {};
const Backend& find_backend(DeviceType type);
[[noreturn]] void no_such(Device device);
}  // namespace detail
/// The backend of a device; throws brrr::Error, saying what is missing, when there is none.
inline const Backend& backend(DeviceType type) {
  const Backend* b = __atomic_load_n(&detail::backends[static_cast<int>(type)], __ATOMIC_ACQUIRE);
  return __builtin_expect(b != nullptr, 1) ? *b : detail::find_backend(type);
}

/// The same for a device that a user names: there is one GPU, the first that the process sees.
inline const Backend& backend(Device device) {
  if (device.index != 0) [[unlikely]]
    detail::no_such(device);
  return backend(device.type);
}

/// Splits [0, n) into contiguous ranges of at least `grain` and runs `f(begin, end)` on the CPU's
/// threads. Results must not depend on the split.
template <class F> void parallel_for(int64_t n, int64_t grain, const F& f) {
  if (n <= grain) {
    if (n > 0) f(int64_t{0}, n);
    return;
  }
  backend(DeviceType::CPU)
      .parallel_for(
          n, grain,
          [](void* ctx, int64_t begin, int64_t end) { (*static_cast<const F*>(ctx))(begin, end); },
          const_cast<void*>(static_cast<const void*>(&f)));
}

}  // namespace brrr
