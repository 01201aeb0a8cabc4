#pragma once
// The boundary between brrr and what talks to a device: a struct of function pointers and plain
// data. No exception and no C++ type crosses it, and no header of the CUDA Toolkit is needed on
// this side. The module brrr_cuda fills it from the Toolkit; tests/emulator fills it for a machine
// without a GPU, and runs the same kernels on the CPU.
//
// Every function returns null, or what went wrong in words that hold until the thread's next call.

#include <compare>
#include <cstddef>
#include <cstdint>

namespace brrr::cuda {

/// Raised whenever anything below changes.
inline constexpr int kAbi = 8;

using Failure = const char*;

struct Stream;    ///< A queue of work in order.
struct Event;     ///< A point in a queue.
struct Module;    ///< Loaded code.
struct Function;  ///< A kernel of a module.
struct Gemm;      ///< A problem of matrix products with its chosen algorithm.
struct Graph;     ///< Captured work, ready to be launched as one.

struct Properties {
  char name[128];
  int major, minor;  ///< Compute capability.
  int multiprocessors;
  int shared_bytes;  ///< Of a block, at most (opt-in limit).
  size_t memory_bytes;
  double memory_bandwidth;  ///< Bytes a second by the data sheet's clocks; 0: not known.
  char uuid[16];            ///< Of the GPU, the same in every process that has opened it.
  int driver_version, runtime_version;  ///< 1000 * major + 10 * minor, as CUDA writes them.
};

enum class Way : int { ToDevice, ToHost, OnDevice };

/// Of a, b and c in memory: an algorithm chosen for any address would be slow for most.
inline constexpr size_t kGemmAlignment = 16;

/// c[m, n] = op(a)[m, k] op(b)[k, n], row-major, `batch` of them at strides in elements.
struct GemmShape {
  enum Type : int { Float32, Float64, BFloat16, Float16 };
  Type type;  ///< Of a, b and c; 16-bit floats accumulate in float32.
  bool tf32;  ///< Float32 products may round their factors to TF32.
  bool trans_a, trans_b;
  int64_t m, n, k, lda, ldb, ldc;
  int64_t batch, stride_a, stride_b, stride_c;
  auto operator<=>(const GemmShape&) const = default;
};

/// The first device, its compiler and its matrix products; what a module exports, as
/// `extern "C" const brrr::cuda::Driver* brrr_cuda_boundary();`. Streams never synchronise with the
/// legacy stream.
struct Driver {
  int abi;           ///< kAbi of the build.
  const char* name;  ///< "cuda", "emulator".
  Failure (*open)(Properties* properties);
  /// Null in `*p` (and no failure) when there is not enough memory.
  Failure (*allocate)(void** p, size_t bytes);
  Failure (*release)(void* p);
  Failure (*allocate_pinned)(void** p, size_t bytes);
  Failure (*memory)(size_t* free, size_t* total);

  Failure (*make_stream)(Stream** s);
  Failure (*synchronize)(Stream* s);
  Failure (*make_event)(Event** e);
  Failure (*record)(Event* e, Stream* s);
  Failure (*wait)(Event* e);  ///< The calling thread waits.
  Failure (*reached)(Event* e, bool* yes);
  /// What is queued on `s` from here on runs after what was queued before the event was recorded.
  Failure (*await)(Stream* s, Event* e);
  Failure (*make_timer)(Event** e);  ///< An event that knows when it was reached.
  /// Between two timers that have been waited for.
  Failure (*elapsed)(Event* from, Event* to, float* milliseconds);

  /// Nothing is queued for 0 bytes.
  Failure (*copy)(void* to, const void* from, size_t bytes, Way way, Stream* s);
  Failure (*fill)(void* to, unsigned char value, size_t bytes, Stream* s);

  /// Code for this device as `compile` gives it, with all of its kernels. Null in `*m` (and no
  /// failure) when there is not enough memory.
  Failure (*load)(const void* image, size_t bytes, Module** m);
  /// Before it the caller has waited for all work that uses the module.
  Failure (*unload)(Module* m);
  /// `name` is a kernel's; `shared_bytes` the dynamic shared memory it will be launched with.
  Failure (*function)(Module* m, const char* name, size_t shared_bytes, Function** f);
  /// The kernel takes one argument by value, the struct of `bytes` bytes at `arguments`, which is
  /// copied before this returns.
  Failure (*launch)(Function* f, const unsigned grid[3], const unsigned block[3],
                    size_t shared_bytes, const void* arguments, size_t bytes, Stream* s);

  /// From here on what this thread queues on `s` is noted instead of run: launches, copies on the
  /// device or from and to pinned memory, fills, matrix products. Another stream that awaits an
  /// event which the capture has recorded belongs to it from then on, until `s` has awaited an
  /// event of that stream, as it must before the end. Nothing else may be asked of the device by
  /// this thread meanwhile: it fails, and any failure of a call of this thread spoils the capture.
  /// Other threads may ask for anything but these streams.
  Failure (*begin_capture)(Stream* s);
  /// The graph of what was noted, with its number of nodes; null if it was spoilt, and the failure
  /// says by what. The stream is as before in either case. By the thread that began it. Takes no
  /// memory of the device.
  Failure (*end_capture)(Stream* s, Graph** g, size_t* nodes);
  /// Makes the graph ready to be launched, which it must be, and brings it to the device, so that
  /// the first launch costs no more than the others. `*done` is false (and there is no failure)
  /// when there is not enough memory; then it may be asked for again. `*bytes` of host and device
  /// memory are the graph's then, as far as they are known.
  Failure (*upload)(Graph* g, Stream* s, bool* done, size_t* bytes);
  Failure (*launch_graph)(Graph* g, Stream* s);
  Failure (*release_graph)(Graph* g);  ///< Launches that wait still run.

  /// Where the device's one arena begins, a range of addresses as long as its memory, which grows
  /// in place: at least so many bytes are usable from then on (`*done` is false when there is not
  /// enough memory).
  Failure (*arena)(size_t bytes, void** begin, bool* done);

  /// CUDA C++ text without headers to machine code for compute capability major.minor, or to PTX
  /// of the newest architecture the compiler knows when it does not know that one. No device is
  /// needed. The image holds until the thread compiles again. On failure the words are the
  /// compiler's log.
  Failure (*compile)(const char* source, const char* name, int major, int minor, const char** image,
                     size_t* bytes);
  int (*compiler_version)();  ///< As Properties::driver_version; decides what a cached image is.

  /// Chooses one algorithm for a problem, the same in every process on the same device.
  Failure (*choose)(const GemmShape* shape, size_t workspace_bytes, Gemm** gemm);
  /// Where a, b or c is not aligned to kGemmAlignment it fails; the workspace is aligned to 256.
  Failure (*multiply)(Gemm* gemm, const void* a, const void* b, void* c, void* workspace,
                      size_t workspace_bytes, Stream* s);
};

}  // namespace brrr::cuda
