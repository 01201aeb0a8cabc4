#pragma once
// Tests of the emulated device alone, through the boundary that the library uses.

#include <dlfcn.h>
#include <doctest/doctest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "backends/cuda/driver.h"
#include "tests/temp_dir.h"

namespace brrr::test {

using namespace brrr::cuda;

/// A copy of the module, because the library may have opened the original.
inline void* module_copy() {
  static void* const module = [] {
    const TemporaryDirectory folder;
    std::filesystem::copy_file(BRRR_EMULATOR_MODULE, folder.path / "emulator.so");
    return dlopen(folder.file("emulator.so").c_str(), RTLD_NOW | RTLD_LOCAL);
  }();
  REQUIRE_MESSAGE(module, dlerror());
  return module;
}
template <class F> F* exported(const char* name) {
  void* found = dlsym(module_copy(), name);
  REQUIRE(found);
  return reinterpret_cast<F*>(found);
}
inline const Driver& driver() {
  static const Driver& found = *exported<const Driver*()>("brrr_cuda_boundary")();
  return found;
}

inline std::string words(Failure f) { return f ? f : "no failure"; }
#define GOOD(call) REQUIRE(words(call) == "no failure")
#define CHECK_FAILS(call, part)                                                \
  do {                                                                         \
    const std::string failure_text = words(call);                              \
    CHECK_MESSAGE(failure_text.find(part) != std::string::npos, failure_text); \
  } while (0)

/// Reopens the device with only the given setting.
struct Device {
  explicit Device(const std::string& name = "", const char* value = "") {
    const char* const names[] = {"BRRR_EMULATOR_MEMORY", "BRRR_EMULATOR_LAZY",
                                 "BRRR_EMULATOR_ORDER", "BRRR_EMULATOR_CAPABILITY"};
    std::vector<std::string> before;
    for (const char* n : names) {
      const char* old = std::getenv(n);
      before.emplace_back(old ? old : "");
      setenv(n, n == name ? value : "", 1);
    }
    GOOD(driver().open(&properties));
    for (size_t i = 0; i < before.size(); ++i) setenv(names[i], before[i].c_str(), 1);
    GOOD(driver().make_stream(&stream));
  }
  Device(const Device&) = delete;
  ~Device() {
    for (void* p : allocated) driver().release(p);
  }

  template <class T> T* device(const std::vector<T>& values) {
    void* p = nullptr;
    GOOD(driver().allocate(&p, values.size() * sizeof(T)));
    REQUIRE(p);
    allocated.push_back(p);
    GOOD(driver().copy(p, values.data(), values.size() * sizeof(T), Way::ToDevice, stream));
    return static_cast<T*>(p);
  }
  template <class T> std::vector<T> host(const T* p, size_t n) {
    std::vector<T> values(n);
    GOOD(driver().copy(values.data(), p, n * sizeof(T), Way::ToHost, stream));
    GOOD(driver().synchronize(stream));
    return values;
  }
  template <class Params>
  Failure launch(Function* f, unsigned blocks, unsigned threads, const Params& p,
                 size_t shared = 0) {
    const unsigned grid[3] = {blocks, 1, 1}, block[3] = {threads, 1, 1};
    return driver().launch(f, grid, block, shared, &p, sizeof p, stream);
  }

  Properties properties{};
  Stream* stream = nullptr;
  std::vector<void*> allocated;
};

/// A kernel of a program; each program is compiled once.
inline Function* kernel(const char* program, const char* name, size_t shared_bytes = 0) {
  static std::map<const char*, Module*> modules;
  Module*& module = modules[program];
  if (!module) {
    const char* image = nullptr;
    size_t bytes = 0;
    GOOD(driver().compile(program, "test", 9, 0, &image, &bytes));
    GOOD(driver().load(image, bytes, &module));
  }
  Function* f = nullptr;
  GOOD(driver().function(module, name, shared_bytes, &f));
  return f;
}

/// The parameters of most test kernels.
struct Vectors {
  const float* a;
  const float* b;
  float* c;
  int n;
};

inline size_t free_bytes() {
  size_t free = 0, total = 0;
  GOOD(driver().memory(&free, &total));
  return free;
}

/// The 16-bit pattern of a small integer, which both 16-bit formats represent exactly.
inline unsigned encode(int x, bool bf16) {
  const unsigned sign = x < 0 ? 0x8000 : 0, y = static_cast<unsigned>(std::abs(x));
  if (y == 0) return sign;
  const int e = std::ilogb(y), mantissa_bits = bf16 ? 7 : 10;
  const unsigned mantissa = (y << mantissa_bits >> e) & ((1u << mantissa_bits) - 1);
  return sign | static_cast<unsigned>(e + (bf16 ? 127 : 15)) << mantissa_bits | mantissa;
}

inline bool all_nan(const std::vector<float>& values) {
  for (float v : values) {
    if (!std::isnan(v)) return false;
  }
  return true;
}

}  // namespace brrr::test
