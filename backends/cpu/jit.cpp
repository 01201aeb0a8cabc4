#include "backends/cpu/jit.h"

#include <dlfcn.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <mutex>
#include <unordered_map>

#include "backends/cpu/host_compiler.h"
#include "backends/kernel_cache.h"
#include "backends/cpu/prelude.h"
#include "backends/sha256.h"
#include "core/check.h"

namespace brrr::cpu {

using namespace jit;

namespace {

// To be raised when generated code starts to assume something new of the library.
constexpr const char* kernel_abi = "brrr-cpu-1";
constexpr int shown_lines = 15;

// What a KernelModule* of this backend points to. A type of its own: another backend in another
// shared object has modules too.
struct Loaded {
  std::string key;
  void* library;
  int users;
};
Loaded* loaded(KernelModule* module) {
  return reinterpret_cast<Loaded*>(module);
}

// All modules of the process. Never destroyed: modules may be unloaded while the process ends.
struct Table {
  std::mutex mutex;
  std::condition_variable changed;
  std::unordered_map<std::string, Loaded*> modules;  // null while it is being built
};
Table& table() {
  static Table& t = *new Table;
  return t;
}

std::atomic<bool> fail_once{false};

bool env_is(const char* name, const char* value) {
  const char* found = std::getenv(name);
  return found && std::strcmp(found, value) == 0;
}

// What -march=native depends on. The cache may be in a home directory that many machines share.
std::string cpu_identity() {
  std::ifstream in("/proc/cpuinfo");
  std::string text;
  for (std::string line; std::getline(in, line) && !line.empty();) {
    for (const char* field : {"vendor_id", "cpu family", "model", "stepping", "flags",
                              "CPU implementer", "CPU part", "CPU variant", "Features", "isa"}) {
      if (line.starts_with(field)) {
        text += line + '\n';
        break;
      }
    }
  }
  utsname machine;
  if (uname(&machine) == 0) {
    text += machine.machine;
    if (text.find('\n') == std::string::npos) text += machine.nodename;  // told nothing: this one
  }
  return text;
}

// The part of the key that is the same all through the process; hashing the prelude takes a while.
const Sha256& key_start() {
  static const Sha256 start = [] {
    Sha256 hash;
    hash.field(kernel_abi).field(prelude());
    for (const std::string& flag : host_compiler_flags()) hash.field(flag);
    if (std::strstr(jit_flags(), "=native")) hash.field(cpu_identity());
    return hash;
  }();
  return start;
}

std::string make_key(const std::string& source, const HostCompiler& compiler) {
  Sha256 hash = key_start();
  for (const std::string& word : compiler.command) hash.field(word);
  return hex(hash.field(compiler.version).field(source).finish(), 16);
}

void write_source(const std::string& path, const std::string& source) {
  std::ofstream out(path, std::ios::binary);
  // So that the compiler's messages count from the first line of the kernels.
  out << "#line 1 \"prelude\"\n" << prelude() << "\n#line 1 \"kernels\"\n" << source << '\n';
  out.close();
  BRRR_CHECK(out, "jit: {} cannot be written: {}; set BRRR_CACHE_DIR to another place", path,
             std::strerror(errno));
}

std::string first_lines(const std::string& text) {
  size_t end = 0;
  for (int line = 0; line < shown_lines && end < text.size(); ++line) {
    end = std::min(text.find('\n', end), text.size() - 1) + 1;
  }
  return text.substr(0, end) + (end < text.size() ? "[...]\n" : "");
}

[[noreturn]] void fail_compile(const HostCompiler& compiler, const ProcessResult& result,
                               const std::string& kept) {
  std::string what = fmt::format("exit status {}", result.status);
  if (result.end == ProcessResult::timed_out) what = "it took too long and was stopped";
  if (result.end == ProcessResult::not_started) what = std::strerror(result.error);
  fail("jit: {} ({}) did not build the generated kernels: {}\n{}{}", compiler.command[0],
       compiler.version, what, first_lines(result.output),
       kept.empty() ? "BRRR_KEEP_SOURCE=1 keeps their source" : "source: " + kept);
}

void compile(const std::string& dir, const std::string& key, const std::string& source,
             const HostCompiler& compiler, const std::string& kept) {
  const ScratchDir scratch(dir);
  const std::string text = scratch.path() + "/kernels.cpp", object = scratch.path() + "/kernels.so";
  write_source(text, source);
  const ProcessResult result = compile_shared(compiler, text, object, scratch.path());
  if (result.end != ProcessResult::finished || result.status != 0 ||
      access(object.c_str(), R_OK) != 0) {
    fail_compile(compiler, result, kept);
  }
  publish_kernel(dir, key, object);
  trim_kernel_cache(dir);
}

// The shared object from the cache, or built.
void* load(const std::string& key, const std::string& source, const HostCompiler& compiler,
           BuildReport& report) {
  const std::string dir = kernel_cache_dir(), path = dir + "/" + key + ".so";
  const std::string kept = env_is("BRRR_KEEP_SOURCE", "1") ? dir + "/" + key + ".cpp" : "";
  if (!kept.empty()) write_source(kept, source);
  if (kernel_is_cached(dir, key)) {
    // May fail: another process that trims the cache could remove it at this moment.
    if (void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
      report.cached = true;
      return library;
    }
  }
  compile(dir, key, source, compiler, kept);
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    const char* why = dlerror();
    fail(
        "jit: the kernels were built but cannot be loaded: {}; if {} is on a file system mounted "
        "noexec, set BRRR_CACHE_DIR to another place",
        why ? why : "unknown reason", dir);
  }
  return library;
}

Loaded* find_or_load(const std::string& key, const std::string& source,
                     const HostCompiler& compiler, BuildReport& report) {
  Table& t = table();
  std::unique_lock lock(t.mutex);
  for (auto it = t.modules.find(key); it != t.modules.end(); it = t.modules.find(key)) {
    if (it->second) {
      ++it->second->users;
      report.cached = true;
      return it->second;
    }
    t.changed.wait(lock);
  }
  t.modules[key] = nullptr;
  lock.unlock();
  Loaded* module = nullptr;
  try {
    module = new Loaded{key, load(key, source, compiler, report), 1};
  } catch (...) {
    lock.lock();
    t.modules.erase(key);  // whoever waited for it tries on its own
    t.changed.notify_all();
    throw;
  }
  lock.lock();
  t.modules[key] = module;
  t.changed.notify_all();
  return module;
}

}  // namespace

KernelModule* build(const std::string& source, BuildReport& report) {
  const auto start = std::chrono::steady_clock::now();
  report = {};
  if (env_is("BRRR_JIT", "off")) fail("no compiler: BRRR_JIT=off");
  if (fail_once.exchange(false) || env_is("BRRR_JIT_FAIL", "1")) {
    fail("jit: this build was told to fail (BRRR_JIT_FAIL=1 or fail_next_build)");
  }
  const HostCompiler compiler = find_host_compiler();
  report.compiler = compiler.version;
  Loaded* module = find_or_load(make_key(source, compiler), source, compiler, report);
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return reinterpret_cast<KernelModule*>(module);
}

void* symbol(KernelModule* module, const char* name) {
  void* address = dlsym(loaded(module)->library, name);
  BRRR_CHECK(address, "jit: the generated kernels have no function {}", name);
  return address;
}

void unload(KernelModule* module) noexcept {
  if (!module) return;
  Loaded* m = loaded(module);
  {
    Table& t = table();
    const std::lock_guard lock(t.mutex);
    if (--m->users > 0) return;
    t.modules.erase(m->key);
  }
  dlclose(m->library);
  delete m;
}

void fail_next_build() {
  fail_once = true;
}

}  // namespace brrr::cpu
