// Driver::compile: kernel source to machine code by NVRTC.

#include <algorithm>
#include <vector>

#include "backends/cuda/module/module.h"
#include "core/thread_own.h"
#include "core/text.h"

namespace brrr::cuda {

namespace {

struct Program : NotCopied {
  nvrtcProgram handle = nullptr;

  Program(const char* source, const char* name) {
    BRRR_CALL(nvrtcCreateProgram, &handle, source, name, 0, nullptr, nullptr);
  }
  ~Program() { nvrtcDestroyProgram(&handle); }
};

struct Target {
  bool machine_code;  // otherwise PTX, which the driver translates when it loads it
  int architecture;   // 90 for 9.0
};

// The architecture itself or, if NVRTC does not know it, the newest older one that it knows.
Target target_of(int major, int minor) {
  int count = 0;
  BRRR_CALL(nvrtcGetNumSupportedArchs, &count);
  std::vector<int> known(count);
  BRRR_CALL(nvrtcGetSupportedArchs, known.data());
  const int wanted = 10 * major + minor;
  int best = 0;
  for (int architecture : known) {
    if (architecture <= wanted) best = std::max(best, architecture);
  }
  if (best == 0) {
    fail("compute capability {}.{} is older than all this compiler supports; {}", major, minor,
         versions(major, minor));
  }
  return {best == wanted, best};
}

// The log's first lines, from the first error on: warnings may be many.
std::string log_of(const Program& program) {
  size_t bytes = 0;
  BRRR_CALL(nvrtcGetProgramLogSize, program.handle, &bytes);
  std::string log(bytes, '\0');
  BRRR_CALL(nvrtcGetProgramLog, program.handle, log.data());
  log.resize(std::char_traits<char>::length(log.c_str()));
  const size_t error = log.find("error:");
  const size_t newline = error == log.npos ? log.npos : log.rfind('\n', error);
  if (newline != log.npos) log.erase(0, newline + 1);
  return first_lines(log);
}

struct Code : std::string {};

}  // namespace

Failure compile(const char* source, const char* name, int major, int minor, const char** image,
                size_t* bytes) {
  *image = nullptr;
  return guarded([&] {
    const Target target = target_of(major, minor);
    const Program program(source, name);
    const std::string architecture = fmt::format(
        "--gpu-architecture={}_{}", target.machine_code ? "sm" : "compute", target.architecture);
    // --minimal omits textures and device-side launches, which saves a sixth of a small program's
    // compile time.
    const char* const options[] = {architecture.c_str(), "--fmad=false", "--std=c++20",
                                   "--minimal"};
    const nvrtcResult status =
        nvrtcCompileProgram(program.handle, static_cast<int>(std::size(options)), options);
    if (status != NVRTC_SUCCESS) {
      fail("{} does not compile: {}; {}\n{}", name, nvrtcGetErrorString(status),
           versions(major, minor), log_of(program));
    }
    auto& code = thread_own<Code>();
    if (target.machine_code) {
      BRRR_CALL(nvrtcGetCUBINSize, program.handle, bytes);
      code.resize(*bytes);
      BRRR_CALL(nvrtcGetCUBIN, program.handle, code.data());
    } else {
      BRRR_CALL(nvrtcGetPTXSize, program.handle, bytes);
      code.resize(*bytes);
      BRRR_CALL(nvrtcGetPTX, program.handle, code.data());
    }
    *image = code.data();
  });
}

int compiler_version() {
  int major = 0, minor = 0;
  return nvrtcVersion(&major, &minor) == NVRTC_SUCCESS ? 1000 * major + 10 * minor : 0;
}

}  // namespace brrr::cuda
