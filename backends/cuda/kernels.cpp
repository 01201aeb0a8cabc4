#include "backends/cuda/kernels.h"

#include <cstdio>
#include <mutex>
#include <unordered_map>

#include "backends/cuda/device.h"
#include "backends/cuda/pool.h"
#include "backends/cuda/support.h"
#include "backends/excerpt.h"
#include "backends/kernel_cache.h"
#include "core/check.h"
#include "ops/vocabulary/spelling.h"

namespace brrr::cuda {

namespace {

// Change it when compiled kernels change although their text and the prelude do not.
constexpr const char* kKernelAbi = "brrr-cuda-1";

constexpr char prelude[] =  // Embedded at build time.
#include "cuda_prelude.inc"
    ;

struct KeyHash {
  size_t operator()(const KernelKey& k) const {
    const auto h = (reinterpret_cast<uintptr_t>(k.owner) >> 4) ^
                   ((k.variant * 31 + k.reaches) * 31 + k.dtypes) * 0x9e3779b97f4a7c15u;
    return h ^ h >> 29;
  }
};

struct Table {
  std::mutex mutex;
  std::unordered_map<KernelKey, Function*, KeyHash> functions;
};

}  // namespace

std::string program_of(const std::string& text) {
  // Never destroyed: a thread may build during process exit.
  static const jit::Vocabulary& vocabulary = *new jit::Vocabulary(prelude);
  return vocabulary.excerpt(text) + "\nusing namespace brrr::vx;\n" + text;
}

std::string machine_code(const Driver& driver, const std::string& text, const char* name, int major,
                         int minor, bool* cached) {
  const std::string dir = jit::kernel_cache_dir();
  const std::string key = jit::fingerprint(
      {kKernelAbi, fmt::format("{} {} {}", driver.compiler_version(), major, minor), prelude,
       text});
  if (cached) *cached = true;
  if (auto found = jit::read_kernel(dir, key)) return std::move(*found);
  const jit::BuildLock alone(dir, key);
  if (auto found = jit::read_kernel(dir, key)) return std::move(*found);
  if (cached) *cached = false;
  const char* image = nullptr;
  size_t bytes = 0;
  const Failure failure =
      driver.compile(program_of(text).c_str(), name, major, minor, &image, &bytes);
  if (failure) fail("cuda: kernel {} does not compile: {}", name, failure);
  std::string code(image, bytes);
  jit::try_to_publish(dir, key, code);
  return code;
}

Module* load_module(const std::string& code, const char* name) {
  Module* module = nullptr;
  const bool loaded = pool().retry_after_trim([&] {
    check(device().driver->load(code.data(), code.size(), &module), name);
    return module != nullptr;
  });
  BRRR_CHECK(loaded, "cuda: no device memory left for the code of {} ({} bytes); {}", name,
             code.size(), pool().describe());
  return module;
}

Function* find_kernel(const KernelKey& key, const char* name, size_t shared_bytes,
                      const std::function<std::string()>& text) {
  Table& t = process_own<Table>();
  const std::lock_guard lock(t.mutex);
  if (const auto it = t.functions.find(key); it != t.functions.end()) return it->second;
  const OpenDevice& d = device();
  // #line, so that the compiler's messages name the kernel and the line in its text.
  const std::string code = machine_code(*d.driver, fmt::format("#line 1 \"{}\"\n", name) + text(),
                                        name, d.properties.major, d.properties.minor);
  Function* f = nullptr;
  check(d.driver->function(load_module(code, name), name, shared_bytes, &f), name);
  return t.functions[key] = f;
}

void register_kernel(const KernelKey& key, Function* f) {
  Table& t = process_own<Table>();
  const std::lock_guard lock(t.mutex);
  t.functions[key] = f;
}

// The definitions of T, TV, TC, TCV, get and put (see Variant), or the same for another letter.
static std::string element_text(DType t, const char* T, const char* suffix) {
  const DType c = compute_type(t);
  const Spelling &s = spelling(t), &cs = spelling(c);
  std::string out = fmt::format("using {0} = {1}; using {0}V = {2};\n", T, s.element, s.vector);
  out += fmt::format("using {0}C = {1}; using {0}CV = {2};\n", T, cs.element, cs.vector);
  out += fmt::format("BRRR_VX {}CV get{}(const {}* p) {{ return {}; }}\n", T, suffix, T,
                     fill(to_compute(t, c), {fill(s.load, {"load(p)"})}));
  out += fmt::format("BRRR_VX void put{}({}* p, {}CV x) {{ store(p, {}); }}\n", suffix, T, T,
                     fill(s.store, {fill(from_compute(c, t, false), {"x"})}));
  return out;
}

std::string with_support(const std::string& text) {
  return fmt::format("{}{}{}", FaultText, kSupportText, text);
}

std::string text_of(const DeviceKernel& k, const Variant& v) {
  std::string text = k.structs + element_text(v.t, "T", "") + element_text(v.u, "U", "_u") +
                     fmt::format("constexpr int N = {};\n", v.n);
  for (const char* part : k.text) text += part ? part : "";
  return with_support(text);
}

void run_kernel(const DeviceKernel& k, const Variant& v, const Grid& g, const void* arguments,
                size_t bytes) {
  const KernelKey key{&k, v.bits() | static_cast<uint64_t>(g.shared_bytes) << 32};
  Function* f =
      find_kernel(key, k.name, static_cast<size_t>(g.shared_bytes), [&] { return text_of(k, v); });
  device_queue::launch(f, k.name, g, k.threads, arguments, bytes);
}

}  // namespace brrr::cuda

namespace brrr {

void device_queue::launch(void* kernel, const char* name, const Grid& grid, int threads,
                          const void* arguments, size_t bytes) {
  using namespace cuda;
  const OpenDevice& d = device();
  constexpr int64_t kMost = 0x7fffffff, kMostOther = 65535;  // CUDA's limits for x and for y, z.
  BRRR_CHECK(grid.x <= kMost && grid.y <= kMostOther && grid.z <= kMostOther,
             "cuda: {} needs a grid of {} x {} x {} blocks; use smaller tensors", name, grid.x,
             grid.y, grid.z);
  const unsigned blocks[3] = {static_cast<unsigned>(grid.x), static_cast<unsigned>(grid.y),
                              static_cast<unsigned>(grid.z)};
  const unsigned block[3] = {static_cast<unsigned>(threads), 1, 1};
  const Failure failure =
      d.driver->launch(static_cast<Function*>(kernel), blocks, block,
                       static_cast<size_t>(grid.shared_bytes), arguments, bytes, d.stream());
  if (failure) fail("cuda: kernel {}: {}", name, failure);
}

}  // namespace brrr
