#pragma once
// Access to the emulator's counters while the library runs on it: tests/emulator/probe.h.

#include <dlfcn.h>

#include <cstdlib>
#include <optional>

#include "tests/emulator/probe.h"

namespace brrr::test {

/// A function of the emulator; null on a real GPU.
template <class F> F* emulated(const char* name) {
  const char* path = std::getenv("BRRR_CUDA_MODULE");
  void* module = path ? dlopen(path, RTLD_NOW | RTLD_NOLOAD) : nullptr;
  return module ? reinterpret_cast<F*>(dlsym(module, name)) : nullptr;
}

inline std::optional<emulator::Counters> counters() {
  const auto f = emulated<emulator::Counters()>("brrr_emulator_counters");
  return f ? std::optional(f()) : std::nullopt;
}

}  // namespace brrr::test
