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
  bool chain = false;            ///< is_chain() of the product that this is a part of.
  bool add = false;              ///< The sums of a chain continue from what C holds.
  const void* packed = nullptr;  ///< B as packed by pack_right(), or null.
};

/// Text of generated kernels: the part that several of them use, and each kernel.
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

/// For messages about memory: the number of blocks per owner and size, and the five largest as
/// text, "; the largest: 2 x 4096 of matmul, 1 x 512 of add".
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
  /// Runs a call whose outputs have memory with the kernel of the op's row for the device, after
  /// its check of values where the host can see these.
  void (*launch)(OpCall& call);
  /// n products of one shape: operands of product i begin at[3 i], at[3 i + 1] and at[3 i + 2]
  /// elements after A, B and C, on a GPU at constant distances. Each has the same bits as when run
  /// by itself.
  void (*gemm)(const Gemm& first, int64_t n, const int64_t* at);
  void (*synchronize)();
  /// Builds kernel text (without the prelude) and keeps it loaded until `unload`. Throws
  /// brrr::Error with the compiler's message when that fails or there is no compiler. `cached`: it
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
[[noreturn]] void no_such_device(Device device);
}  // namespace detail
/// The backend of a device; throws brrr::Error, saying what is missing, when there is none.
inline const Backend& backend(DeviceType type) {
  const Backend* b = __atomic_load_n(&detail::backends[static_cast<int>(type)], __ATOMIC_ACQUIRE);
  return __builtin_expect(b != nullptr, 1) ? *b : detail::find_backend(type);
}

/// The same for a device that a user names: there is one GPU, the first that the process sees.
inline const Backend& backend(Device device) {
  if (device.index != 0) [[unlikely]]
    detail::no_such_device(device);
  return backend(device.type);
}

/// What the host offers besides: memory, products and threads. Defined by backends/cpu.
namespace host {
/// Bytes of a tensor's block in allocate_row(); 0: a tensor of `bytes` cannot have one.
size_t block_bytes(size_t bytes) noexcept;
/// One allocation for n tensors, block_bytes() apart, each of which is deallocated by itself; null
/// as for allocate().
void* allocate_row(const size_t* bytes, size_t n) noexcept;
/// Whether each element is one chain of multiply-adds: computing rows separately, or adding terms
/// later, does not change its bits.
bool is_chain(const Gemm& problem);
/// Bytes of the packed copy of B that the product's kernel reads; 0: it reads B itself.
int64_t packed_right_bytes(const Gemm& problem);
/// Makes that copy, for any number of products of these sizes.
void pack_right(const Gemm& problem, void* to);
/// Splits [0, n) into at most as many contiguous chunks as the pool has threads, each but the last
/// a multiple of `grain`, and calls fn once for each. One inline call fn(ctx, 0, n) when n <= grain
/// or the pool's threads are not available, so results must not depend on the split. All chunks use
/// the caller's rounding and denormal modes. The first exception of the lowest chunk is rethrown
/// after all chunks have ended.
using RangeFn = void (*)(void* ctx, int64_t begin, int64_t end);
void run_ranges(int64_t n, int64_t grain, RangeFn fn, void* ctx);
}  // namespace host

/// A piece of host memory, and its offset in bytes at the destination.
struct HostPart {
  const void* from;
  size_t at, bytes;
};

struct DeviceGraph;
struct HostCopy;
/// The queue of a device that has one: marks, captured work, early copies. Defined by
/// backends/cuda.
namespace device_queue {
struct Mark;  ///< A point in the queue, with a time stamp.
Mark* mark();
/// Microseconds from one mark to another; waits for both. They may be used again.
double between(Mark* from, Mark* to);
void drop(Mark* mark) noexcept;

// --- captured work that runs as one launch ------------------------------------------------------
/// From here on, work that this thread queues is captured instead of run, until the capture ends.
void begin_capture();
/// Throws brrr::Error with what invalidated the capture. Memory that kernels took and gave back
/// meanwhile stays the graph's.
DeviceGraph* end_capture(size_t* nodes);
void abandon_capture() noexcept;  ///< No effect without a capture.
void launch(DeviceGraph* g);
void release(DeviceGraph* g) noexcept;
size_t bytes_of(DeviceGraph* g);
/// The device's one arena for replays, of at least `bytes`; it never moves. Null when there is not
/// enough memory.
char* arena(size_t bytes);
/// Queues the pieces, in the order of their offsets, as one copy through pinned memory. The caller
/// may change them at once; bytes between them on the device are not preserved.
void upload(void* to, const HostPart* parts, size_t n);
/// A number for a place in a step, a module path, which fault reports carry from then on.
uint32_t site(const std::string& path);
/// Queues a copy of at most kEarlyBytes to the host; null when it cannot be queued.
HostCopy* copy_out(const void* from, size_t bytes);
/// Waits for that copy, but not for work queued after it. Throws like copy_to_host.
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
