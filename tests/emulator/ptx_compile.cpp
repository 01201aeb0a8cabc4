// Compiles kernels to PTX with the module brrr_cuda, with the options that it uses for GPUs.

#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>

#include "core/thread_own.h"
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

const Driver& compiler() {
  static const Driver* const module = [] {
    const std::string path = BRRR_EMULATOR_NVRTC;
    BRRR_CHECK(!path.empty(),
               "BRRR_EMULATOR_PTX: the module brrr_cuda, which calls NVRTC, was "
               "not built");
    void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    BRRR_CHECK(handle, "BRRR_EMULATOR_PTX: {}", dlerror());
    const auto boundary =
        reinterpret_cast<const Driver* (*)()>(dlsym(handle, "brrr_cuda_boundary"));
    BRRR_CHECK(boundary && boundary()->abi == kAbi, "BRRR_EMULATOR_PTX: {} is of another build",
               path);
    return boundary();
  }();
  return *module;
}

// The path, without extension, at which a program's PTX and source are kept for later processes: in
// the folder that BRRR_EMULATOR_PTX names; "" if it names none.
std::string kept_at(const std::string& source, const std::string& name, int major, int minor) {
  const std::string folder = std::getenv("BRRR_EMULATOR_PTX");
  if (folder.find('/') == folder.npos) return "";
  const size_t hash = std::hash<std::string>()(
      fmt::format("{} {}.{} {} {}", compiler_version(), major, minor, name, source));
  return fmt::format("{}/{:016x}", folder, hash);
}

bool read_kept(const std::string& path, const char** image, size_t* bytes) {
  std::ifstream in(path.empty() ? path : path + ".ptx", std::ios::binary);
  if (path.empty() || !in) return false;
  struct Text : std::string {};
  auto& text = thread_own<Text>();
  text.assign(std::istreambuf_iterator<char>(in), {});
  *image = text.data();
  *bytes = text.size();
  return true;
}

// Writes to a temporary name and renames it: several processes may write the same file at once.
void write_kept(const std::string& path, const char* source, const char* image, size_t bytes) {
  if (path.empty()) return;
  std::ofstream(path + ".cu") << source;
  const std::string part = fmt::format("{}.{}", path, getpid());
  std::ofstream(part, std::ios::binary).write(image, static_cast<std::streamsize>(bytes));
  std::rename(part.c_str(), (path + ".ptx").c_str());
}

}  // namespace

// Asks for the following minor versions: brrr_cuda gives PTX only where NVRTC does not know one.
Failure compile(const char* source, const char* name, int major, int minor, const char** image,
                size_t* bytes) {
  expect_compiler();
  const std::string kept = kept_at(source, name, major, minor);
  if (read_kept(kept, image, bytes)) return nullptr;
  for (int next = minor + 1; next < 10; ++next) {
    const Failure failure = compiler().compile(source, name, major, next, image, bytes);
    if (failure) return failure;
    if (is_ptx(*image, *bytes)) {
      write_kept(kept, source, *image, *bytes);
      return nullptr;
    }
  }
  return "BRRR_EMULATOR_PTX: the compiler makes no PTX for this capability";
}

void expect_compiler() { compiler(); }

// Differs from brrr_cuda's version, so that cached PTX and machine code are not confused.
int compiler_version() {
  try {
    return compiler().compiler_version() + 1'000'000;
  } catch (const std::exception&) {
    return 0;  // compile() will report it.
  }
}

}  // namespace brrr::emulator::ptx
