#pragma once
// Shared by tests of the CUDA backend. They run on the device of the module in $BRRR_CUDA_MODULE,
// the emulator or a GPU, and compare with the CPU.

#include "backends/cuda/calls.h"
#include "core/context.h"
#include "tests/op_cases.h"
#include "tests/temp_cache.h"

namespace brrr::test {

/// A kernel to compile: `name` is the kernel's name in `text`, which lacks the prelude.
struct KernelText {
  cuda::KernelKey key;
  const char* name;
  size_t shared_bytes;
  std::string text;
};

/// Begins a test case: returns false, and prints why, if there is no device. From the first call
/// on, programs of the steps that tests run are also compiled for a real GPU, if the module for it
/// is built, and kernels given as text are recorded for compile_what_ran().
bool have_device();
/// At the end of the process: compiles the recorded kernels, many in a program, except those that
/// an earlier process has compiled. Of kernels of row ops and reductions every third is compiled,
/// for one of the kArchitectures in turn. Of a kernel and dtype the last variant (by
/// Variant::bits()) is compiled for all kArchitectures, the others for one of them in turn; those
/// of long texts (attention), which take up to seconds each, for none. Long tests compile all for
/// all. On failure prints the compiler's output and returns false.
bool compile_what_ran();
/// The kernel's PTX for compute capability 8.0; needs gpu_compiler().
std::string ptx_of(const KernelText& k);

inline Tensor on_cpu(const Tensor& t) { return t.defined() ? t.detach().to(kCPU) : t; }
/// Copies a CPU tensor to the device in its own layout: the same view of a copy of its whole
/// storage. A tensor that requires grad becomes a leaf that does.
Tensor on_gpu(const Tensor& t);
Tensors on_gpu(const Tensors& all);

/// Empty if `gpu` is on the device and equals `cpu`: float64 to a few units in the last place of
/// max(value, 1), all other dtypes to the last bit. Otherwise describes the difference.
std::string device_difference(const Tensor& gpu, const Tensor& cpu);

/// Collects the kernels that calls would need on a device, while they run on the CPU.
class KernelsNeeded : Observer {
 public:
  KernelsNeeded() { context.observer = this; }
  ~KernelsNeeded() { context.observer = nullptr; }
  KernelsNeeded(const KernelsNeeded&) = delete;
  KernelsNeeded& operator=(const KernelsNeeded&) = delete;
  std::vector<cuda::PointwiseCall> calls;
  std::vector<KernelText> rows;  ///< Kernels of row ops and reductions.

 private:
  void ran(const OpCall& call) override;
};
std::vector<KernelText> kernels_of(const std::vector<cuda::PointwiseCall>& calls);
/// Compiles many kernels in one program, which saves most of the time.
void build_all(const std::vector<KernelText>& kernels);

/// Sets a variable that the emulator reads when it is opened; no effect on a GPU.
class EmulatorSetting {
 public:
  EmulatorSetting(const char* variable, const std::string& value);
  ~EmulatorSetting();

 private:
  std::optional<Env> env_;
};

/// The compiler for real GPUs, which works without one; null if its module was not built.
const cuda::Driver* gpu_compiler();
/// Compute capabilities that kernels must compile for.
inline constexpr int kArchitectures[] = {8, 9, 10};
/// Compiles the kernels for one architecture, each text once and many in a program, which saves
/// most of the time, or loads them from the cache. Empty if all give machine code and no kernel's
/// stack exceeds kMostStack (cubin.h); else the compiler's output, or these kernels.
std::string compile_failures(const std::vector<KernelText>& kernels, int major);

/// Whether a row's cases of a dtype run: short tests run `always` and a quarter of the others.
inline bool is_turn(const OpDef& op, DType t, std::initializer_list<DType> always) {
  return long_tests() || std::count(always.begin(), always.end(), t) ||
         (op.index + static_cast<unsigned>(t)) % 4 == 0;
}

}  // namespace brrr::test
