#include "tests/cuda_cases.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include "backends/cuda/device.h"
#include "backends/kernel_cache.h"
#include "core/backend.h"
#include "core/check.h"
#include "tests/cubin.h"

namespace brrr::test {

using namespace cuda;

// --- the device ----------------------------------------------------------------------------------

namespace {

struct Compiled {
  std::string code, failure;
};
Compiled compile(const std::string& text, const char* name, int major) {
  Compiled c;
  c.failure = error_of([&] { c.code = machine_code(*gpu_compiler(), text, name, major, 0); });
  if (!c.failure.empty()) return c;
  // An ELF file, or PTX if the compiler is older than the architecture.
  const bool good = c.code.starts_with("\177ELF") || c.code.find(".target") != c.code.npos;
  if (!good) c.failure = "no machine code";
  return c;
}

// A line for each kernel of the machine code with too large a stack; `describe` gives a suffix for
// a name.
template <class Describe>
std::string stack_failures(const std::string& code, int major, const Describe& describe) {
  std::string lines;
  for (const KernelResources& r : resources_of(code)) {
    if (r.stack <= kMostStack) continue;
    lines += fmt::format("{}{} takes {} bytes of stack, {} at most, on compute capability {}.0\n",
                         r.name, describe(r.name), r.stack, kMostStack, major);
  }
  return lines;
}

// The library's backend; a wrapper in its place compiles everything for real GPUs first.
const Backend* library = nullptr;

// The kernels that tests have run; those given as text by kernel, dtype and variant bits.
struct Ran {
  std::mutex mutex;
  std::map<std::pair<const DeviceKernel*, DType>, std::map<uint32_t, Variant>> variants;
  std::map<KernelKey, KernelText> rows;
};
Ran& ran() {
  static Ran all;
  return all;
}

void run_noted(const DeviceKernel& k, const Variant& v, const Grid& g, const void* arguments,
               size_t bytes) {
  if (gpu_compiler()) {
    const std::lock_guard lock(ran().mutex);
    ran().variants[{&k, v.t}].emplace(v.bits(), v);
  }
  library->run_kernel(k, v, g, arguments, bytes);
}

// The kernels of a row op's or a reduction's call.
std::vector<KernelText> rows_kernels(const OpCall& c) {
  std::vector<KernelText> kernels;
  OpCall again(*c.op, c.in, c.n_in, c.n_out);
  again.attrs = c.attrs;
  for (int k = 0; k < c.n_out; ++k) again.out[k] = c.out[k];
  for_each_rows_call(again, [&](const RowsCall& call) {
    each_launch(call.walk, call.space, [&](program::Stage stage, int64_t, int) {
      static constexpr const char* names[] = {"k", "k_columns", "k_numbers"};
      kernels.push_back({call.key(stage), names[static_cast<int>(stage)], 0, call.text(stage)});
    });
  });
  return kernels;
}
bool has_rows(const OpDef& op) { return (op.row || op.reduction) && !op.on(DeviceType::CUDA).run; }

void launch_noted(OpCall& c) {
  library->launch(c);
  if (!gpu_compiler() || !has_rows(*c.op)) return;
  for (KernelText& k : rows_kernels(c)) {
    const std::lock_guard lock(ran().mutex);
    ran().rows.try_emplace(k.key, std::move(k));
  }
}

// An architecture determined by the text; with `of` > 1 for one text in `of` only, else 0.
int turn_of(const std::string& text, size_t of = 1) {
  const size_t turn = std::hash<std::string>{}(text) % (std::size(kArchitectures) * of);
  return turn < std::size(kArchitectures) ? kArchitectures[turn] : 0;
}

// The cache key that records that a process has compiled the kernel for that architecture.
std::string compiled_key(const KernelText& k, int major) {
  return jit::fingerprint({fmt::format("checked {} {}", gpu_compiler()->compiler_version(), major),
                           cuda::program_of(k.text), k.name});
}

// The recorded kernels for an architecture that no process has compiled yet.
std::vector<KernelText> kernels_to_compile(int major) {
  constexpr size_t kLongText = 8192;
  const std::string dir = jit::kernel_cache_dir();
  std::vector<KernelText> kernels;
  for (const auto& [what, variants] : ran().variants) {
    const DeviceKernel& k = *what.first;
    size_t length = 0;
    for (const char* part : k.text) length += part ? std::strlen(part) : 0;
    const bool is_long = length >= kLongText;
    for (const auto& [bits, v] : variants) {
      const KernelText text{{}, k.name, 0, text_of(k, v)};
      const bool last = bits == variants.rbegin()->first;
      const bool turn = (last || !is_long) && turn_of(text.text) == major;
      if (!turn && !long_tests()) continue;
      if (!jit::read_kernel(dir, compiled_key(text, major))) kernels.push_back(text);
    }
  }
  for (const auto& [key, text] : ran().rows) {
    const bool turn = turn_of(text.text, 3) == major || long_tests();
    if (turn && !jit::read_kernel(dir, compiled_key(text, major))) kernels.push_back(text);
  }
  return kernels;
}

KernelModule* build_checked(const KernelSource& source, bool& cached) {
  if (gpu_compiler()) {
    const std::string all = source.all();
    const int major = turn_of(all, long_tests() ? 1 : 2);
    if (!major) return library->build(source, cached);
    const auto built = compile(with_support(all), "step", major);
    CHECK_MESSAGE(built.failure.empty(), built.failure);
    const std::string lines =
        stack_failures(built.code, major, [](const std::string&) { return ""; });
    CHECK_MESSAGE(lines.empty(), lines, all);
  }
  return library->build(source, cached);
}

std::string open_device() {
  const std::string why = error_of([] { library = &backend(DeviceType::CUDA); });
  if (!why.empty()) return why;
  static Backend checked = *library;
  checked.run_kernel = run_noted;
  checked.launch = launch_noted;
  checked.build = build_checked;
  detail::backends[static_cast<int>(DeviceType::CUDA)] = &checked;
  return "";
}

}  // namespace

bool have_device() {
  static const std::string why = open_device();
  static bool said = false;
  if (!why.empty() && !std::exchange(said, true)) {
    std::printf("skipped: no device (%s)\n", why.c_str());
  }
  return why.empty();
}

bool compile_what_ran() {
  std::string failures;
  for (int major : kArchitectures) {
    const std::vector<KernelText> kernels = kernels_to_compile(major);
    const std::string words = compile_failures(kernels, major);
    failures += words;
    for (const KernelText& k : kernels) {
      if (!words.empty()) break;
      jit::publish_kernel(jit::kernel_cache_dir(), compiled_key(k, major), k.name);
    }
  }
  if (!failures.empty()) {
    std::printf("kernels that ran do not compile for real GPUs:\n%s\n", failures.c_str());
  }
  return failures.empty();
}

std::string ptx_of(const KernelText& k) {
  // No GPU has 8.1: code for it is PTX of 8.0.
  return machine_code(*gpu_compiler(), k.text, k.name, 8, 1);
}

// --- tensors -------------------------------------------------------------------------------------

Tensor on_gpu(const Tensor& t) {
  if (!t.defined()) return t;
  const NoGradGuard guard;
  const auto all = static_cast<int64_t>(t.impl()->storage->bytes / itemsize(t.dtype()));
  const Tensor storage = as_strided(t.detach(), {all}, {1}, 0).to(kCUDA);
  const Tensor moved = as_strided(storage, t.sizes(), t.strides(), t.storage_offset());
  return t.requires_grad() ? moved.detach().set_requires_grad(true) : moved;
}

Tensors on_gpu(const Tensors& all) {
  Tensors moved;
  for (const Tensor& t : all) moved.push_back(on_gpu(t));
  return moved;
}

std::string device_difference(const Tensor& gpu, const Tensor& cpu) {
  if (!gpu.defined() || !cpu.defined()) return difference(gpu, cpu);
  if (gpu.device() != kCUDA) return "the result is not on the device";
  const Tensor got = on_cpu(gpu);
  const std::string d = difference(got, cpu);
  if (d.empty() || cpu.dtype() != kFloat64 || got.dtype() != kFloat64) return d;
  if (got.sizes() != cpu.sizes()) return d;
  const auto u = got.to_vector<double>(), v = cpu.to_vector<double>();
  for (size_t i = 0; i < u.size(); ++i) {
    const bool same = u[i] == v[i] || (std::isnan(u[i]) && std::isnan(v[i]));
    const double unit = 0x1p-52 * std::max(1.0, std::fabs(v[i]));
    if (!same && !(std::fabs(u[i] - v[i]) <= 8 * unit)) return d;
  }
  return "";
}

// --- kernels -------------------------------------------------------------------------------------

void KernelsNeeded::ran(const OpCall& c) {
  Iteration it;
  if (c.op->pointwise && pointwise_iteration(c, it)) {
    calls.push_back(pointwise_call(*c.op, it));
  }
  if (has_rows(*c.op)) {
    const std::vector<KernelText> more = rows_kernels(c);
    rows.insert(rows.end(), more.begin(), more.end());
  }
}

std::vector<KernelText> kernels_of(const std::vector<cuda::PointwiseCall>& calls) {
  std::vector<KernelText> kernels;
  for (const cuda::PointwiseCall& c : calls) kernels.push_back({c.key(), "k", 0, c.text()});
  return kernels;
}

static std::string name_in_program(const char* name, size_t place) {
  return fmt::format("{}_{}", name, place);
}

// The text of one program, with each kernel renamed in a namespace of its own.
static std::string program_text(const std::vector<KernelText>& kernels) {
  std::string all;
  for (size_t i = 0; i < kernels.size(); ++i) {
    const KernelText& k = kernels[i];
    const std::string head = fmt::format("KERNEL({},", k.name);
    const size_t at = k.text.find(head);
    BRRR_CHECK(at != std::string::npos, "no {} ...) in the text of kernel {}", head, k.name);
    all += fmt::format("namespace k{} {{\n#line 1 \"{}\"\n", i, k.name) + k.text.substr(0, at) +
           fmt::format("KERNEL({},", name_in_program(k.name, i)) + k.text.substr(at + head.size()) +
           "}\n";
  }
  return all;
}

static void build_program(const std::vector<KernelText>& kernels) {
  const OpenDevice& d = device();
  const char* const name = kernels[0].name;
  Module* const module = load_module(
      machine_code(*d.driver, program_text(kernels), name, d.properties.major, d.properties.minor),
      name);
  for (size_t i = 0; i < kernels.size(); ++i) {
    Function* f = nullptr;
    cuda::check(d.driver->function(module, name_in_program(kernels[i].name, i).c_str(),
                                   kernels[i].shared_bytes, &f),
                kernels[i].name);
    register_kernel(kernels[i].key, f);
  }
}

void build_all(const std::vector<KernelText>& kernels) {
  constexpr size_t kMany = 64;
  std::vector<KernelText> some;
  for (size_t i = 0; i < kernels.size(); ++i) {
    const auto same = [&](const KernelText& k) { return k.key == kernels[i].key; };
    if (std::none_of(some.begin(), some.end(), same)) some.push_back(kernels[i]);
    if (some.size() < kMany && i + 1 < kernels.size()) continue;
    build_program(some);
    some.clear();
  }
}

// --- settings ------------------------------------------------------------------------------------

static void reopen() {
  Properties ignored;
  cuda::check(device().driver->open(&ignored), "open");
}
EmulatorSetting::EmulatorSetting(const char* variable, const std::string& value) {
  env_.emplace(variable, value.c_str());
  reopen();
}
EmulatorSetting::~EmulatorSetting() {
  env_.reset();
  reopen();
}

const Driver* gpu_compiler() {
#ifdef BRRR_CUDA_MODULE
  static const Driver* const found = [] {
    void* module = dlopen(BRRR_CUDA_MODULE, RTLD_NOW | RTLD_LOCAL);
    REQUIRE_MESSAGE(module, dlerror());
    void* get = dlsym(module, "brrr_cuda_boundary");
    REQUIRE(get);
    return reinterpret_cast<const Driver* (*)()>(get)();
  }();
  return found;
#else
  return nullptr;
#endif
}

std::string compile_failures(const std::vector<KernelText>& kernels, int major) {
  constexpr size_t kMany = 48;
  std::string failures;
  std::set<std::string> seen;
  std::vector<KernelText> some;
  for (size_t i = 0; i <= kernels.size(); ++i) {
    if (some.size() == kMany || (i == kernels.size() && !some.empty())) {
      const auto [code, failure] = compile(program_text(some), some[0].name, major);
      if (!failure.empty()) failures += failure + '\n';
      failures += stack_failures(code, major, [&](const std::string& name) {
        const auto is = [&](const KernelText& k) {
          return name == name_in_program(k.name, static_cast<size_t>(&k - some.data()));
        };
        const auto k = std::find_if(some.begin(), some.end(), is);
        const bool row = k != some.end() && k->key.owner;
        return row ? fmt::format(" ({})", static_cast<const OpDef*>(k->key.owner)->name) : "";
      });
      some.clear();
    }
    if (i < kernels.size() && seen.insert(kernels[i].text).second) some.push_back(kernels[i]);
  }
  return failures;
}

}  // namespace brrr::test
