// Finds and opens the module that talks to the device.
#include "backends/cuda/device.h"

#include <dlfcn.h>
#include <unistd.h>

#include <climits>
#include <cstdlib>
#include <utility>
#include <vector>

#include "core/check.h"

namespace brrr::cuda {

namespace {

constexpr const char* kModule = "libbrrr_cuda.so";
// Of the compute capability: 16-bit attention's matrix instructions and bfloat16 products.
constexpr int kLeastMajor = 8;

std::string folder_of(const std::string& path) {
  return path.substr(0, path.find_last_of('/') + 1);
}

// Beside the program, beside the library that this code is in, or where the loader looks.
std::vector<std::string> candidates() {
  if (const char* own = std::getenv("BRRR_CUDA_MODULE"); own && *own) return {own};
  std::vector<std::string> all;
  char self[PATH_MAX];
  const ssize_t n = readlink("/proc/self/exe", self, sizeof self);
  if (n > 0) all.push_back(folder_of(std::string(self, static_cast<size_t>(n))) + kModule);
  Dl_info here;
  if (dladdr(reinterpret_cast<const void*>(&folder_of), &here) && here.dli_fname) {
    all.push_back(folder_of(here.dli_fname) + kModule);
  }
  all.push_back(kModule);
  return all;
}

const Boundary& open_module() {
  std::string why;
  for (const std::string& path : candidates()) {
    // Never closed: threads of the driver outlive main.
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library) {
      const char* said = dlerror();
      if (why.empty() || access(path.c_str(), F_OK) == 0) why = said ? said : "unknown reason";
      continue;
    }
    const auto boundary =
        reinterpret_cast<const Boundary* (*)()>(dlsym(library, "brrr_cuda_boundary"));
    BRRR_CHECK(boundary, "cuda: {} is no module of brrr; set BRRR_CUDA_MODULE to one", path);
    const Boundary* b = boundary();
    BRRR_CHECK(b->abi == kAbi,
               "cuda: {} is of another build (interface {}, wanted {}); build the module and brrr "
               "together",
               path, b->abi, kAbi);
    return *b;
  }
  fail(
      "cuda: the module {} cannot be loaded ({}); build brrr with the CUDA Toolkit, set "
      "BRRR_CUDA_MODULE, or use brrr::kCPU",
      kModule, why);
}

OpenDevice* open() {
  const Boundary& b = open_module();
  auto* d = new OpenDevice{b.driver, b.tools, b.name, {}, nullptr, nullptr, {}};
  const Failure failure = d->driver->open(0, &d->properties);
  if (failure) fail("cuda: {}; use brrr::kCPU", failure);
  const Properties& p = d->properties;
  BRRR_CHECK(p.major >= kLeastMajor,
             "cuda: {} has compute capability {}.{}, and brrr's kernels need {}.0 or newer; use "
             "brrr::kCPU",
             p.name, p.major, p.minor, kLeastMajor);
  check(d->driver->make_stream(&d->compute), "no stream");
  check(d->driver->make_stream(&d->capture), "no stream");
  return d;
}

}  // namespace

OpenDevice& device() {
  // What failed once fails alike ever after: a loop may ask for every tensor.
  static const auto result = [] {
    std::pair<OpenDevice*, std::string> r{};
    try {
      r.first = open();
    } catch (const Error& e) {
      r.second = e.what();
    }
    return r;
  }();
  if (!result.first) throw Error(result.second);
  return *result.first;
}

void check(Failure failure, const char* what) {
  if (failure) [[unlikely]]
    fail("cuda: {}: {}", what, failure);
}

void synchronize() {
  OpenDevice& d = device();
  d.counters.synchronisations.fetch_add(1, std::memory_order_relaxed);
  check(d.driver->synchronize(d.compute), "synchronize");
}

}  // namespace brrr::cuda
