// Compiles programs with the host's compiler: the dialect's text, then the program's.

#include <climits>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "backends/cpu/host_compiler.h"
#include "core/hash.h"
#include "core/thread_own.h"
#include "tests/emulator/device.h"
#include "tests/emulator/program.h"
#include "tests/emulator/ptx.h"

namespace brrr::emulator {

using namespace cuda;

namespace {

const char* const dialect =
#include "emulator_dialect.inc"
    ;

// Bits equal the GPU's for + - * / sqrt fma. No sanitizers: they do not know the fibers' stacks.
// -nostdlib, because linking no C++ library and no start files halves the time of a small program;
// functions of libm are resolved in this process. -Og compiles in three quarters of -O1's time and
// runs as fast; -O0 compiles in 0.6 of it and runs half as fast.
const char* const flags[] = {"-std=c++20",
                             "-Og",
                             "-ffp-contract=off",
                             "-fno-fast-math",
                             "-fno-math-errno",
                             "-fPIC",
                             "-shared",
                             "-nostdlib",
                             "-pipe",
                             "-w",
                             "-g0",
                             "-fvisibility=hidden",
                             "-fno-exceptions",
                             "-fno-rtti",
                             "-fno-asynchronous-unwind-tables",
                             "-fno-stack-protector",
                             "-fno-threadsafe-statics",
                             "-fdiagnostics-color=never"};

struct Folder {
  std::string path = (std::filesystem::temp_directory_path() / "brrr-compile-XXXXXX").string();
  Folder() { BRRR_CHECK(mkdtemp(path.data()), "compile: cannot make the folder {}", path); }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
};

void run_compiler(const std::vector<std::string>& arguments, const std::string& object,
                  const std::string& folder) {
  std::vector<std::string> command = cpu::find_host_compiler().command;
  command.insert(command.end(), std::begin(flags), std::end(flags));
  command.insert(command.end(), arguments.begin(), arguments.end());
  command.insert(command.end(), {"-o", object});
  constexpr double limit_s = 300;
  const cpu::ProcessResult result = cpu::run_process(command, limit_s, folder);
  const bool good = result.end == cpu::ProcessResult::finished && result.status == 0;
  if (good && std::filesystem::exists(object)) return;
  fail("{} ended with status {}{}\n{}", command[0], result.status,
       result.end == cpu::ProcessResult::timed_out ? ", it took too long" : "", result.output);
}

// #line makes line numbers in the compiler's log those of the program.
std::string whole_text(const char* source, const char* name) {
  std::string quoted;
  for (const char* c = name; *c; ++c) quoted += *c == '"' || *c == '\\' || *c == '\n' ? '_' : *c;
  return fmt::format("{}\n#line 1 \"{}\"\n{}\n}}\n", dialect, quoted, source);
}

}  // namespace

Failure compile(const char* source, const char* name, int major, int minor, const char** image,
                size_t* bytes) {
  return guarded([&] {
    if (ptx::wanted()) {
      if (const Failure failure = ptx::compile(source, name, major, minor, image, bytes)) {
        fail("{}", failure);
      }
      return;
    }
    const Folder folder;
    const std::string file = folder.path + "/program.cpp", object = folder.path + "/program.so";
    std::ofstream(file) << whole_text(source, name);
    run_compiler({"-x", "c++", file}, object, folder.path);
    std::ifstream in(object, std::ios::binary);
    struct Content : std::string {};
    auto& content = thread_own<Content>();
    content.assign(std::istreambuf_iterator<char>(in), {});
    BRRR_CHECK(!content.empty(), "compile: cannot read {}", object);
    *image = content.data();
    *bytes = content.size();
  });
}

// Not a version of CUDA: a hash of everything that images depend on.
int compiler_version() {
  if (ptx::wanted()) return ptx::compiler_version();
  std::string all = dialect;
  for (const char* flag : flags) all += flag;
  try {
    all += cpu::find_host_compiler().version;
  } catch (const std::exception&) {
    // compile() will report it.
  }
  Fnv sum;
  sum.add(all.data(), all.size());
  return static_cast<int>(sum.hash & INT_MAX);
}

}  // namespace brrr::emulator
