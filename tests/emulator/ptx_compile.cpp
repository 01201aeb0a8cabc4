// Kernels as PTX: by the compiler of the module for GPUs, with its options.

#include <dlfcn.h>

#include <cstdlib>

#include "tests/emulator/device.h"
#include "tests/emulator/ptx.h"

#ifndef BRRR_EMULATOR_NVRTC
#define BRRR_EMULATOR_NVRTC ""
#endif

namespace brrr::emulator::ptx {

using namespace cuda;

bool wanted() {
  static const bool yes = [] {
    const char* text = std::getenv("BRRR_EMULATOR_PTX");
    return text && *text && std::string(text) != "0";
  }();
  return yes;
}

namespace {

const Tools& compiler() {
  static const Tools* const tools = [] {
    const std::string path = BRRR_EMULATOR_NVRTC;
    BRRR_CHECK(!path.empty(), "BRRR_EMULATOR_PTX: the module brrr_cuda, which calls NVRTC, was "
               "not built");
    void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    BRRR_CHECK(handle, "BRRR_EMULATOR_PTX: {}", dlerror());
    const auto boundary =
        reinterpret_cast<const Boundary* (*)()>(dlsym(handle, "brrr_cuda_boundary"));
    BRRR_CHECK(boundary && boundary()->abi == kAbi, "BRRR_EMULATOR_PTX: {} is of another build",
               path);
    return boundary()->tools;
  }();
  return *tools;
}

}  // namespace

// For a capability that it does not know the module's compiler makes PTX of the one before.
Failure compile(const char* source, const char* name, int major, int minor, void** image,
                size_t* bytes) {
  for (int next = minor + 1; next < 10; ++next) {
    const Failure words = compiler().compile(source, name, major, next, image, bytes);
    if (words || is_ptx(*image, *bytes)) return words;
    compiler().release_image(*image);
  }
  return "BRRR_EMULATOR_PTX: the compiler makes no PTX for this capability";
}

int compiler_version() { return compiler().compiler_version() + 1'000'000; }

}  // namespace brrr::emulator::ptx
