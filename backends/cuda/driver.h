#pragma once
// The boundary between brrr and a device module: a struct of function pointers and plain data. No
// exception and no C++ type crosses it, and no header of the CUDA Toolkit is needed on this side.
// The module brrr_cuda implements it with the Toolkit; tests/emulator implements it for machines
// without a GPU and runs the same kernels on the CPU.
//
// Every function returns null or an error message, which is valid until the thread's next call.

#include <compare>
#include <cstddef>
#include <cstdint>

namespace brrr::cuda {

/// Increment whenever anything below changes.
inline constexpr int kAbi = 8;

using Failure = const char*;

struct Stream;    ///< An in-order queue of work.
struct Event;     ///< A point in a stream.
struct Module;    ///< Loaded code.
struct Function;  ///< A kernel of a module.
struct Gemm;      ///< A matrix product's shape with the algorithm chosen for it.
struct Graph;     ///< Captured work, launched as a whole.

struct Properties {
  char name[128];
  int major, minor;  ///< Compute capability.
  int multiprocessors;
  int shared_bytes;  ///< Most shared memory per block (opt-in limit).
  size_t memory_bytes;
  double memory_bandwidth;  ///< Bytes/s from the nominal memory clock; 0: not known.
  char uuid[16];            ///< Identifies the GPU; the same in every process that opened it.
  int driver_version, runtime_version;  ///< 1000 * major + 10 * minor, as CUDA encodes them.
};

enum class Way : int { ToDevice, ToHost, OnDevice };

/// Required of a, b and c, in bytes: an algorithm that takes any address is slower for most shapes.
inline constexpr size_t kGemmAlignment = 16;

/// c[m, n] = op(a)[m, k] op(b)[k, n], row-major, `batch` products; strides are in elements.
struct GemmShape {
  enum Type : int { Float32, Float64, BFloat16, Float16 };
  Type type;  ///< Of a, b and c; 16-bit floats accumulate in float32.
  bool tf32;  ///< Float32 products may round their factors to TF32.
  bool trans_a, trans_b;
  int64_t m, n, k, lda, ldb, ldc;
  int64_t batch, stride_a, stride_b, stride_c;
  auto operator<=>(const GemmShape&) const = default;
};

/// The first device, its compiler and its matrix products. A module exports it through
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
  Failure (*wait)(Event* e);  ///< Blocks the calling thread.
  Failure (*reached)(Event* e, bool* yes);
  /// Work queued on `s` from here on runs after what was queued before the event was recorded.
  Failure (*await)(Stream* s, Event* e);
  Failure (*make_timer)(Event** e);  ///< An event with a timestamp.
  /// Between two timers that have both been waited for.
  Failure (*elapsed)(Event* from, Event* to, float* milliseconds);

  /// 0 bytes queue nothing.
  Failure (*copy)(void* to, const void* from, size_t bytes, Way way, Stream* s);
  Failure (*fill)(void* to, unsigned char value, size_t bytes, Stream* s);

  /// Loads an image made by `compile` for this device, with all of its kernels. Null in `*m` (and
  /// no failure) when there is not enough memory.
  Failure (*load)(const void* image, size_t bytes, Module** m);
  /// The caller has waited for all work that uses the module.
  Failure (*unload)(Module* m);
  /// Looks up kernel `name`; `shared_bytes` is the dynamic shared memory it will be launched with.
  Failure (*function)(Module* m, const char* name, size_t shared_bytes, Function** f);
  /// The kernel takes one argument by value, a struct of `bytes` bytes at `arguments`, which is
  /// copied before this returns.
  Failure (*launch)(Function* f, const unsigned grid[3], const unsigned block[3],
                    size_t shared_bytes, const void* arguments, size_t bytes, Stream* s);

  /// From here on work that this thread queues on `s` is captured instead of run: launches, copies
  /// on the device or from and to pinned memory, fills, matrix products. Another stream that awaits
  /// an event recorded in the capture joins it, and must be joined back before the end: `s` awaits
  /// an event of that stream. Any other device call by this thread fails meanwhile, and any failed
  /// call by this thread invalidates the capture. Other threads may do anything that does not use
  /// these streams.
  Failure (*begin_capture)(Stream* s);
  /// The captured graph and its number of nodes; null, with the first failure, if the capture was
  /// invalidated. Either way the capture has ended. Must be called by the thread that began it.
  /// Allocates no device memory.
  Failure (*end_capture)(Stream* s, Graph** g, size_t* nodes);
  /// Instantiates the graph and uploads it to the device, as required before launch_graph, so that
  /// the first launch costs no more than later ones. `*done` is false (and there is no failure)
  /// when there is not enough memory; it may then be called again. `*bytes` is the graph's host and
  /// device memory as far as known.
  Failure (*upload)(Graph* g, Stream* s, bool* done, size_t* bytes);
  Failure (*launch_graph)(Graph* g, Stream* s);
  Failure (*release_graph)(Graph* g);  ///< Queued launches still run.

  /// The device's only arena: an address range as large as device memory, which grows in place and
  /// never moves. Makes at least `bytes` usable (`*done` is false when there is not enough memory)
  /// and sets `*begin`.
  Failure (*arena)(size_t bytes, void** begin, bool* done);

  /// Compiles CUDA C++ without headers to machine code for compute capability major.minor or, if
  /// the compiler does not know it, to PTX for the newest older one it knows. Needs no device. The
  /// image is valid until the thread compiles again. On failure the message holds the compiler's
  /// log.
  Failure (*compile)(const char* source, const char* name, int major, int minor, const char** image,
                     size_t* bytes);
  int (*compiler_version)();  ///< Like Properties::driver_version; part of the disk cache's key.

  /// Chooses the algorithm for a shape: the same in every process on the same device.
  Failure (*choose)(const GemmShape* shape, size_t workspace_bytes, Gemm** gemm);
  /// Fails unless a, b and c are aligned to kGemmAlignment; the workspace is aligned to 256 bytes.
  Failure (*multiply)(Gemm* gemm, const void* a, const void* b, void* c, void* workspace,
                      size_t workspace_bytes, Stream* s);
};

}  // namespace brrr::cuda
