// The generated kernels of a step, split into programs that are compiled in parallel.
#include <algorithm>
#include <functional>
#include <future>
#include <memory>
#include <thread>

#include "backends/cuda/backend.h"
#include "backends/cuda/device.h"
#include "backends/cuda/kernels.h"
#include "core/check.h"
#include "core/signals.h"

namespace brrr {

// The texts of the programs and, in the same order, their loaded code.
struct KernelModule {
  std::vector<std::string> texts;
  std::vector<cuda::Module*> modules = {};
};

namespace cuda {

// More programs would only wait for the longest kernel, and each compilation takes 100 MB.
constexpr unsigned kMost = 16;

// Distributes the kernels to programs of about equal length, at most one per hardware thread.
static std::vector<std::string> split(const KernelSource& source) {
  const auto most = std::clamp(std::thread::hardware_concurrency(), 1u, kMost);
  std::vector<std::string> texts(std::min<size_t>(most, source.kernels.size()));
  std::vector<const std::string*> longest_first;
  for (const std::string& k : source.kernels) longest_first.push_back(&k);
  std::ranges::stable_sort(longest_first, std::greater(), &std::string::size);
  for (const std::string* k : longest_first)
    *std::ranges::min_element(texts, {}, &std::string::size) += *k;
  for (std::string& t : texts) t = with_support(source.shared + t);
  return texts;
}

KernelModule* build(const KernelSource& source, bool& cached) {
  const OpenDevice& d = device();
  std::vector<std::string> texts = split(source);
  const size_t n = texts.size();
  std::vector<std::string> codes(n);
  std::vector<char> kept(n);
  const auto make = [&](size_t k) {
    bool found = false;
    codes[k] =
        machine_code(*d.driver, texts[k], "step", d.properties.major, d.properties.minor, &found);
    kept[k] = found;
  };
  std::vector<std::future<void>> others;  // One thread each; lazily if no thread can be started.
  {
    const SignalsBlocked blocked;
    for (size_t k = 1; k < n; ++k) others.push_back(std::async(make, k));
  }
  if (n) make(0);
  for (std::future<void>& run : others) run.get();
  std::unique_ptr<KernelModule, decltype(&unload)> made(new KernelModule{std::move(texts)}, unload);
  for (const std::string& c : codes) made->modules.push_back(load_module(c, "step"));
  cached = !std::ranges::count(kept, 0);
  return made.release();
}

void* symbol(KernelModule* m, const char* name) {
  const std::string begins = fmt::format("KERNEL({},", name);
  const auto at = std::ranges::find_if(
      m->texts, [&](const std::string& text) { return text.find(begins) != text.npos; });
  BRRR_CHECK(at != m->texts.end(), "cuda: the step's programs have no kernel {}", name);
  Module* const module = m->modules[static_cast<size_t>(at - m->texts.begin())];
  Function* f = nullptr;
  check(device().driver->function(module, name, 0, &f), name);
  return f;
}

void unload(KernelModule* m) noexcept {
  if (!m) return;
  const std::unique_ptr<KernelModule> all(m);
  const OpenDevice& d = device();
  d.driver->synchronize(d.compute);  // A running replay may still use it.
  for (Module* module : all->modules) d.driver->unload(module);
}

}  // namespace cuda

}  // namespace brrr
