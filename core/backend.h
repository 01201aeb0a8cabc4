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
  const void* packed = nullptr;  ///< What pack_right() made of B.
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
struct KernelModule;  ///< Generated kernels after building.

/// For messages about memory: how many blocks of so many bytes an owner has, and the first five of
/// them, "; the largest: 2 x 4096 of matmul, 1 x 512 of add".
using Holders = std::map<std::pair<std::string, size_t>, size_t>;
std::string name_largest(const Holders& holders);

struct Backend {
  /// `bytes` of memory aligned to 64, or null when there is none.
  void* (*allocate)(size_t bytes) noexcept;
  void (*deallocate)(void* p, size_t bytes) noexcept;
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
  /// n products of one shape: operands of product i begin at[3 i], at[3 i + 1] and at[3 i + 2]
  /// elements after A, B and C, on a GPU at even distances. Each has the bits that it would have by
  /// itself.
  void (*gemm)(const Gemm& first, int64_t n, const int64_t* at);
  void (*synchronize)();
  /// Builds kernel text (without the prelude) and keeps it loaded until `unload`. Throws
  /// brrr::Error with the compiler's words when that fails or there is no compiler. `cached`: it
  /// was found on disk, nothing was compiled.
  KernelModule* (*build)(const KernelSource& source, bool& cached);
  void* (*symbol)(KernelModule* m, const char* name);
  void (*unload)(KernelModule* m) noexcept;
  /// Queues a kernel given as text (core/device_kernel.h). Null on the CPU.
  void (*run_kernel)(const DeviceKernel& k, const Variant& v, const Grid& g, const void* arguments,
                     size_t bytes) = nullptr;
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

/// What the host offers besides: its memory, products and threads. Defined by backends/cpu.
namespace host {
/// What a tensor of `bytes` takes in a row of blocks; 0 for one that cannot be in a row.
size_t block_bytes(size_t bytes) noexcept;
/// One piece of memory for n tensors, block_bytes() apart, each of which is deallocated by itself;
/// null as for allocate().
void* allocate_row(const size_t* bytes, size_t n) noexcept;
/// Whether each element is one chain of multiply-adds: rows may be computed apart, and terms added
/// later, without a change of bits.
bool is_chain(const Gemm& problem);
/// Bytes of B as the product's kernel reads it, where that is a copy; 0: it reads B.
int64_t packed_right_bytes(const Gemm& problem);
/// Makes that copy, for as many products of these sizes as there are.
void pack_right(const Gemm& problem, void* to);
/// Splits [0, n) into at most as many contiguous chunks as the pool has threads, each but the last
/// a multiple of `grain`, and calls fn once for each. One inline call fn(ctx, 0, n) when n <= grain
/// or the gang of threads is not to be had, so results must not depend on the split. All compute as
/// the caller does, with its rounding and its denormals. The first exception of the lowest chunk is
/// rethrown after all chunks have ended.
using RangeFn = void (*)(void* ctx, int64_t begin, int64_t end);
void run_ranges(int64_t n, int64_t grain, RangeFn fn, void* ctx);
}  // namespace host

/// A piece of host memory, and how far behind the others' common beginning it goes.
struct HostPart {
  const void* from;
  size_t at, bytes;
};

struct DeviceGraph;
struct HostCopy;
/// What is queued on a device that has a queue: marks, captured work, early copies. Defined by
/// backends/cuda.
namespace device_queue {
struct Mark;  ///< A point in the queue that knows its time.
Mark* mark();
/// Microseconds from one mark to another, both of which it waits for. They may be asked again.
double between(Mark* from, Mark* to);
void drop(Mark* mark) noexcept;

// --- captured work that runs as one launch ------------------------------------------------------
/// From here on what this thread queues is noted instead of run, until the capture's end.
void begin_capture();
/// Throws brrr::Error with what spoilt the capture. Memory that kernels took and gave back
/// meanwhile stays the graph's.
DeviceGraph* end_capture(size_t* nodes);
void abandon_capture() noexcept;  ///< Nothing to do if no capture is going on.
void launch(DeviceGraph* g);
void release(DeviceGraph* g) noexcept;
size_t bytes_of(DeviceGraph* g);
/// The device's one arena for replays, at least so large; it never moves. Null when there is not
/// enough memory.
char* arena(size_t bytes);
/// Queues the pieces, in the order of their places, as one copy through pinned memory. They may be
/// changed at once; what lies between them on the device is not kept.
void upload(void* to, const HostPart* parts, size_t n);
/// A number for a place in a step, a module path, which notes of faults carry from then on.
uint32_t site(const std::string& path);
/// A copy of at most 64 bytes to the host is queued; null when it cannot be.
HostCopy* copy_out(const void* from, size_t bytes);
/// Waits for that copy, and for nothing that was queued after it. Throws like copy_to_host.
void read(const HostCopy& c, void* to, size_t offset, size_t bytes);
void drop(HostCopy* c) noexcept;
}  // namespace device_queue
inline constexpr size_t kEarlyBytes = 64;

/// Splits [0, n) into contiguous ranges of at least `grain` and runs `f(begin, end)` on the CPU's
/// threads. Results must not depend on the split.
template <class F> void parallel_for(int64_t n, int64_t grain, const F& f) {
  if (n <= grain) {
    if (n > 0) f(int64_t{0}, n);
    return;
  }
  host::run_ranges(
      n, grain,
      [](void* ctx, int64_t begin, int64_t end) { (*static_cast<const F*>(ctx))(begin, end); },
      const_cast<void*>(static_cast<const void*>(&f)));
}

}  // namespace brrr
