#pragma once
// Kernels given as text, for a device whose backend compiles them: the implementation of an op
// there when no kernel can be generated from its row.
//
//   BRRR_DEVICE_STRUCT(EyeArguments, { char* to; long columns; });
//   constexpr DeviceKernel eye{"eye", EyeArgumentsText, 256, {R"(
//     KERNEL(eye, EyeArguments, 256) {
//       T* to = (T*)p.to;
//       ...
//     })"}};
//   run_kernel(eye, {.t = x.dtype}, {blocks}, EyeArguments{...});
//
// The dialect is CUDA C++ without headers after the device prelude (ops/vocabulary/vec_device.h):
// KERNEL, or BLOCK_KERNEL where the threads of a block cooperate, takes the name, the type of the
// one argument `p`, and the threads per block. EACH_KERNEL also names what it iterates over, and
// its count.

#include <cstdint>

#include "core/backend.h"

namespace brrr {

struct OpDef;

/// Defines struct Name here, and its text for kernels as NameText, so that the two cannot differ.
/// Members are pointers, long, double, int, unsigned, float, arrays and structs of them.
#define BRRR_DEVICE_STRUCT(Name, ...) \
  struct Name __VA_ARGS__;            \
  inline constexpr char Name##Text[] = "struct " #Name " " #__VA_ARGS__ ";\n"

/// The same for functions that the CPU runs too (BRRR_VX functions of scalars).
#define BRRR_DEVICE_FUNCTIONS(TextName, ...) \
  __VA_ARGS__                                \
  inline constexpr char TextName[] = #__VA_ARGS__ "\n"

/// One text, compiled once for each variant that is used.
struct DeviceKernel {
  const char* name;     ///< Of the kernel in the text.
  const char* structs;  ///< Texts of the structs it takes.
  int threads;          ///< Per block.
  const char* text[5];  ///< What kernels share, then the kernel.
};

/// The parameters of a compilation. T is the element type of dtype t in memory and TV its one-lane
/// vector; TC and TCV are the same for t's compute type, with TCV get(const T*) and void put(T*,
/// TCV). U, UV, UC, UCV, get_u and so on belong to u; N is n.
struct Variant {
  DType t = DType::Float32;
  DType u = DType::Float32;
  int n = 0;
  uint32_t bits() const {
    return static_cast<uint32_t>(t) | static_cast<uint32_t>(u) << 4 | static_cast<uint32_t>(n) << 8;
  }
};

/// Blocks of a launch, and the dynamic shared memory of each.
struct Grid {
  int64_t x = 1, y = 1, z = 1;
  int64_t shared_bytes = 0;
};

/// Queues the kernel on the current device; does nothing if the grid is empty. Throws brrr::Error
/// with the compiler's message when it cannot be built.
template <class Arguments>
void run_kernel(const DeviceKernel& k, Variant v, const Grid& g, const Arguments& a) {
  if (g.x > 0 && g.y > 0 && g.z > 0) backend(DeviceType::CUDA).run_kernel(k, v, g, &a, sizeof a);
}
namespace device_queue {
/// The one place where kernels are queued: a kernel from Backend::symbol, for a step's plan.
/// `arguments` are copied.
void launch(void* kernel, const char* name, const Grid& grid, int threads, const void* arguments,
            size_t bytes);
}  // namespace device_queue
/// For kernels' arguments: where `in_range(p.fault, i, limit, p.op)` records the first index
/// outside [0, limit), for which it returns false: nothing may be read or written then. The next
/// read of a tensor, or synchronize(), throws the recorded error. `op` is fault_op(call).
/// `bad_row(p.fault, row, p.op)` records other values that an op cannot take.
char* device_fault();
/// Identifies the op of a call and, in a replay, the place of the call in the step.
long fault_op(const OpDef& op, uint32_t site);
long fault_op(const OpCall& c);
/// Blocks of `threads` that cover n elements, `each` per thread.
inline int64_t blocks_for(int64_t n, int64_t threads = 256, int64_t each = 1) {
  return (n + threads * each - 1) / (threads * each);
}

}  // namespace brrr
