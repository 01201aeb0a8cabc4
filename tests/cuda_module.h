#pragma once
// Tests of the module brrr_cuda alone, through the boundary that the library uses.

#include <dlfcn.h>
#include <doctest/doctest.h>

#include <chrono>
#include <string>
#include <vector>

#include "backends/cuda/driver.h"
#include "tests/error_text.h"

namespace brrr::test::cuda {

using namespace brrr::cuda;
using test::contains;

inline const Driver& boundary() {
  static const Driver* const found = [] {
    void* module = dlopen(BRRR_CUDA_MODULE, RTLD_NOW | RTLD_LOCAL);
    REQUIRE_MESSAGE(module, dlerror());
    void* get = dlsym(module, "brrr_cuda_boundary");
    REQUIRE_MESSAGE(get, dlerror());
    return reinterpret_cast<const Driver* (*)()>(get)();
  }();
  return *found;
}

inline std::string kernel(const std::string& name, const std::string& body) {
  return "struct Params { const float* x; float* y; int n; };\n"
         "extern \"C\" __global__ void __launch_bounds__(128) " +
         name + "(const __grid_constant__ Params p) {\n  " + body + "\n}\n";
}

inline const std::string doubling = kernel("doubling",
                                           "const int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
                                           "  if (i < p.n) p.y[i] = 2 * p.x[i];");

/// The result of a compilation, or its error message.
struct Compiled {
  std::string image, failure;
  double ms;
};

inline Compiled compile(const std::string& source, int major, int minor = 0) {
  const auto start = std::chrono::steady_clock::now();
  const char* image = nullptr;
  size_t bytes = 0;
  const Failure failure =
      boundary().compile(source.c_str(), "test.cu", major, minor, &image, &bytes);
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
  Compiled compiled{"", failure ? failure : "", took.count()};
  CHECK((failure == nullptr) == (image != nullptr));
  if (image) compiled.image.assign(image, bytes);
  return compiled;
}

#define REQUIRE_DONE(call)                            \
  do {                                                \
    const Failure words_ = (call);                    \
    REQUIRE_MESSAGE(!words_, (words_ ? words_ : "")); \
  } while (0)

/// Whether there is a GPU; `message` gets the error otherwise.
inline bool open_device(Properties& properties, std::string& message) {
  const Failure failure = boundary().open(&properties);
  message = failure ? failure : "";
  return !failure;
}

struct Device {
  const Driver& driver = boundary();
  Stream* stream = nullptr;
  std::vector<void*> held;

  Device() { REQUIRE_DONE(driver.make_stream(&stream)); }
  ~Device() {
    for (void* p : held) CHECK(driver.release(p) == nullptr);
  }
  void* allocate(size_t bytes) {
    void* p = nullptr;
    REQUIRE_DONE(driver.allocate(&p, bytes));
    REQUIRE(p);
    held.push_back(p);
    return p;
  }
  void* put(const std::string& bytes) {
    void* p = allocate(bytes.size());
    REQUIRE_DONE(driver.copy(p, bytes.data(), bytes.size(), Way::ToDevice, stream));
    REQUIRE_DONE(driver.synchronize(stream));
    return p;
  }
  std::string get(const void* p, size_t bytes) {
    std::string got(bytes, '\0');
    REQUIRE_DONE(driver.copy(got.data(), p, bytes, Way::ToHost, stream));
    REQUIRE_DONE(driver.synchronize(stream));
    return got;
  }
};

}  // namespace brrr::test::cuda
