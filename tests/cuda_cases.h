#pragma once
// What tests of the CUDA backend share. They run on whatever device the module in
// $BRRR_CUDA_MODULE offers, the emulator or a GPU, and compare with the CPU.

#include "backends/cuda/calls.h"
#include "core/context.h"
#include "tests/op_cases.h"
#include "tests/temp_cache.h"

namespace brrr::test {

/// A kernel to be built: `name` is the kernel's in the text, which lacks the prelude.
struct KernelText {
  cuda::KernelKey key;
  const char* name;
  size_t shared_bytes;
  std::string text;
};

/// To begin a test case with: false, and a word on stdout, where there is no device. From the first
/// call on, steps' programs that tests run are also compiled for a real GPU, where the module for
/// them is built, and kernels given as text are noted for compile_what_ran().
bool have_device();
/// At the end of the process: compiles what was noted, many kernels in a program, but for what an
/// earlier process has compiled. Of kernels of row ops and reductions every third, for one of the
/// kArchitectures in turn. Of a kernel and dtype the last variant (by Variant::bits()) is
/// compiled for all kArchitectures, each other one for one of them in turn; those of long texts,
/// attention's, which take up to seconds each, for none. Long tests compile all for all. False, and
/// the compiler's words on stdout, where that fails.
bool compile_what_ran();
/// The kernel as PTX, for compute capability 8.0; needs gpu_compiler().
std::string ptx_of(const KernelText& k);

inline Tensor on_cpu(const Tensor& t) { return t.defined() ? t.detach().to(kCPU) : t; }
/// A CPU tensor on the device in its own layout: the same view of a copy of all of its storage.
/// What requires grad becomes a leaf that does.
Tensor on_gpu(const Tensor& t);
Tensors on_gpu(const Tensors& all);

/// Empty if `gpu` is on the device and has the values of `cpu`: those of float64 to a few units in
/// the last place of the larger of value and 1, all others to the last bit.
std::string device_difference(const Tensor& gpu, const Tensor& cpu);

/// Collects what pointwise kernels calls would need on a device, while they run on the CPU.
class KernelsNeeded : Observer {
 public:
  KernelsNeeded() { context.observer = this; }
  ~KernelsNeeded() { context.observer = nullptr; }
  KernelsNeeded(const KernelsNeeded&) = delete;
  KernelsNeeded& operator=(const KernelsNeeded&) = delete;
  std::vector<cuda::PointwiseCall> calls;
  std::vector<KernelText> rows;  ///< Of row ops and reductions.

 private:
  void ran(const OpCall& call) override;
};
std::vector<KernelText> kernels_of(const std::vector<cuda::PointwiseCall>& calls);
/// In programs of many kernels, which saves most of the time.
void build_all(const std::vector<KernelText>& kernels);

/// A variable that the emulator reads when it is opened; means nothing to a GPU.
class EmulatorSetting {
 public:
  EmulatorSetting(const char* variable, const std::string& value);
  ~EmulatorSetting();

 private:
  std::optional<Env> env_;
};

/// The compiler for real GPUs, which needs none; null where its module was not built.
const cuda::Driver* gpu_compiler();
/// Compute capabilities that kernels must compile for.
inline constexpr int kArchitectures[] = {8, 9, 10};
/// Compiles the kernels, each text once, for one architecture as programs of many, which saves most
/// of the time, or takes these from the cache. Empty if that gives machine code, and no kernel
/// takes more than kMostStack (cubin.h); else the compiler's words, or these kernels.
std::string compile_failures(const std::vector<KernelText>& kernels, int major);

/// Whether a row's cases of a dtype are run: in short tests some always, of the others a quarter.
inline bool is_turn(const OpDef& op, DType t, std::initializer_list<DType> always) {
  return long_tests() || std::count(always.begin(), always.end(), t) ||
         (op.index + static_cast<unsigned>(t)) % 4 == 0;
}

}  // namespace brrr::test
