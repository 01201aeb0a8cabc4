#include "backends/cpu/jit.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <mutex>
#include <set>

#include "backends/cpu/host_compiler.h"
#include "backends/excerpt.h"
#include "backends/kernel_cache.h"
#include "core/check.h"
#include "core/text.h"

namespace brrr::cpu {

using namespace jit;

// Change it when the interface between generated code and the library changes.
constexpr const char* kernel_abi = "brrr-cpu-1";

// What -march=native depends on: several machines may share the cache in one home directory.
static std::string cpu_identity() {
  constexpr const char* fields[] = {
      "vendor_id",       "cpu family", "model",       "stepping", "flags",
      "CPU implementer", "CPU part",   "CPU variant", "Features", "isa"};
  std::ifstream in("/proc/cpuinfo");
  std::string text;
  for (std::string line; std::getline(in, line) && !line.empty();) {
    const auto begins = [&](const char* field) { return line.starts_with(field); };
    if (std::ranges::any_of(fields, begins)) text += line + '\n';
  }
  utsname machine;
  if (uname(&machine) == 0) {
    text += machine.machine;
    if (text.find('\n') == std::string::npos) text += machine.nodename;  // no CPU fields found
  }
  return text;
}

// The headers of cpu_prelude (CMakeLists.txt) without their #include lines, embedded at build time:
// eager and generated code share one definition of each function, and an installed library needs
// no headers at run time. The build splits the text into adjacent raw string literals, since long
// literals are not portable.
static constexpr char prelude[] =
#include "cpu_prelude.inc"
    ;

static std::string make_key(const std::string& source, const HostCompiler& compiler) {
  const std::vector<std::string> flags = host_compiler_flags(compiler);
  const bool native = std::ranges::count(flags, "-march=native");
  // Never destroyed: a thread may build during process exit.
  static const std::string& machine = *new std::string(native ? cpu_identity() : "");
  std::vector<std::string_view> fields{kernel_abi, prelude, machine, compiler.version, source};
  fields.insert(fields.end(), flags.begin(), flags.end());
  fields.insert(fields.end(), compiler.command.begin(), compiler.command.end());
  return fingerprint(fields);
}

static void write_source(const std::string& dir, const std::string& path,
                         const std::string& source) {
  std::ofstream out(path, std::ios::binary);
  // Never destroyed: a thread may build during process exit.
  static const Vocabulary& vocabulary = *new Vocabulary(prelude);
  // #line, so that the compiler's messages count from the first line of the kernels.
  out << "#line 1 \"prelude\"\n"
      << vocabulary.excerpt(source) << "\n#line 1 \"kernels\"\n"
      << source << '\n';
  out.close();
  BRRR_CHECK(out, "jit: {}: no source can be written: {}; set BRRR_CACHE_DIR to another place", dir,
             std::strerror(errno));
}

[[noreturn]] static void fail_compile(const HostCompiler& compiler, const ProcessResult& result,
                                      const std::string& kept) {
  std::string what = result.status ? fmt::format("exit status {}", result.status)
                                   : "it wrote an incomplete shared object";
  if (result.end == ProcessResult::timed_out) what = "it took too long and was stopped";
  if (result.end == ProcessResult::not_started) what = std::strerror(result.error);
  fail("jit: {} ({}) did not build the generated kernels: {}\n{}{}", compiler.command[0],
       compiler.version, what, first_lines(result.output),
       kept.empty() ? "BRRR_KEEP_SOURCE=1 keeps their source" : "source: " + kept);
}

// Whether the file contains everything its ELF headers refer to: the loader maps it unchecked, and
// touching a page beyond the end of the file kills the process (SIGBUS).
static bool is_whole(const std::string& code) {
  Elf64_Ehdr head;
  if (code.size() < sizeof head) return false;
  std::memcpy(&head, code.data(), sizeof head);
  const auto inside = [&](uint64_t at, uint64_t bytes) {
    return at <= code.size() && bytes <= code.size() - at;
  };
  if (std::memcmp(head.e_ident, ELFMAG, SELFMAG) != 0 || head.e_phentsize != sizeof(Elf64_Phdr) ||
      !inside(head.e_phoff, uint64_t{head.e_phnum} * sizeof(Elf64_Phdr)) ||
      !inside(head.e_shoff, uint64_t{head.e_shnum} * head.e_shentsize)) {
    return false;
  }
  for (size_t k = 0; k < head.e_phnum; ++k) {
    Elf64_Phdr part;
    std::memcpy(&part, code.data() + head.e_phoff + k * sizeof part, sizeof part);
    if (part.p_type == PT_LOAD && !inside(part.p_offset, part.p_filesz)) return false;
  }
  return true;
}

static void compile(const std::string& dir, const std::string& key, const std::string& source,
                    const HostCompiler& compiler, const std::string& kept) {
  const ScratchDir scratch(dir);
  const std::string text = scratch.path() + "/kernels.cpp", object = scratch.path() + "/kernels.so";
  write_source(dir, text, source);
  // Sources whose compilation timed out fail at once from then on: a step retries failed builds.
  static std::mutex mutex;
  static auto& stopped = *new std::set<std::string>;  // Keys. Never destroyed, as above.
  ProcessResult result;
  result.end = ProcessResult::timed_out;
  const auto was_stopped = [&] {
    const std::lock_guard lock(mutex);
    return stopped.count(key) > 0;
  };
  if (!was_stopped()) result = compile_shared(compiler, text, object, scratch.path());
  if (result.end == ProcessResult::timed_out) {
    const std::lock_guard lock(mutex);
    stopped.insert(key);
  }
  std::string code;
  if (result.end == ProcessResult::finished && result.status == 0 &&
      std::filesystem::is_regular_file(object)) {
    std::ifstream built(object, std::ios::binary);
    code.assign(std::istreambuf_iterator<char>(built), {});
  }
  if (!is_whole(code)) fail_compile(compiler, result, kept);
  publish_kernel(dir, key, code);
}

static void* open_shared(const std::string& path) {
  return dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
}

// The cached shared object, or null: also if another process trims it between reading and opening.
static void* find_cached(const std::string& dir, const std::string& key) {
  const auto code = read_kernel(dir, key);
  return code && is_whole(*code) ? open_shared(kernel_path(dir, key)) : nullptr;
}

// Opens the shared object from the cache, building it if it is not there.
static void* load(const std::string& key, const std::string& source, const HostCompiler& compiler,
                  bool& cached) {
  const std::string dir = kernel_cache_dir();
  const std::string kept = env_or_empty("BRRR_KEEP_SOURCE") == "1" ? dir + "/" + key + ".cpp" : "";
  if (!kept.empty()) write_source(dir, kept, source);
  cached = true;
  if (void* library = find_cached(dir, key)) return library;
  const BuildLock alone(dir, key);
  if (void* library = find_cached(dir, key)) return library;
  cached = false;
  compile(dir, key, source, compiler, kept);
  if (void* library = open_shared(kernel_path(dir, key))) return library;
  const char* why = dlerror();
  fail(
      "jit: the kernels were built but cannot be loaded: {}; if {} is on a file system mounted "
      "noexec, set BRRR_CACHE_DIR to another place",
      why ? why : "unknown reason", dir);
}

KernelModule* build(const std::string& source, bool& cached) {
  if (env_or_empty("BRRR_JIT") == "off") fail("no compiler: BRRR_JIT=off");
  if (env_or_empty("BRRR_JIT_FAIL") == "1")
    fail("jit: BRRR_JIT_FAIL=1: this build was told to fail");
  const HostCompiler compiler = find_host_compiler();
  const std::string key = make_key(source, compiler);
  return static_cast<KernelModule*>(load(key, source, compiler, cached));
}

void* symbol(KernelModule* module, const char* name) {
  void* address = dlsym(module, name);
  if (address) return address;
  // The file is not what this source gives: remove it, so that the next process builds it again.
  struct link_map* at = nullptr;
  if (dlinfo(module, RTLD_DI_LINKMAP, &at) == 0 && at) ::unlink(at->l_name);
  fail("jit: the generated kernels have no function {}", name);
}

void unload(KernelModule* module) noexcept {
  if (module) dlclose(module);
}

}  // namespace brrr::cpu
