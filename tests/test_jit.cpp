#include "backends/cpu/jit.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "backends/cpu/host_compiler.h"
#include "brrr.h"
#include "core/error.h"
#include "tests/sanitizer.h"
#include "tests/temp_cache.h"

using namespace brrr;
using namespace brrr::test;

namespace {

std::string source_of(int constant) {
  return "extern \"C\" void add(float* a, const float* b, long n) {\n"
         "  using namespace brrr::vx;\n"
         "  for (long i = 0; i < n; i += 16)\n"
         "    store(a + i, load(a + i) + exp(load(b + i)) + " +
         std::to_string(constant) +
         ".0f);\n"
         "}\n"
         "extern \"C\" double wide(double x) { return brrr::vx::exp(brrr::vx::splat(x))[3]; }\n";
}

struct Built {  // a module for one test
  bool cached = false;
  KernelModule* module;
  explicit Built(const std::string& source) : module(cpu::build(source, cached)) {}
  ~Built() { cpu::unload(module); }
  Built(const Built&) = delete;
  Built& operator=(const Built&) = delete;
};

// Runs the kernel of source_of(constant) on zeros; the result less 1.
float run(KernelModule* module) {
  float a[32] = {}, b[32] = {};
  reinterpret_cast<void (*)(float*, const float*, long)>(cpu::symbol(module, "add"))(a, b, 32);
  for (float x : a) CHECK(x == a[0]);
  return a[0] - 1.0f;
}

std::string error_of(const std::string& source) {
  try {
    const Built built(source);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace

TEST_CASE("jit: builds a kernel, finds it again, leaves nothing else behind") {
  const TempCache cache;
  {
    const Built first(source_of(1));
    CHECK_FALSE(first.cached);
    CHECK(run(first.module) == 1.0f);
    const auto wide = reinterpret_cast<double (*)(double)>(cpu::symbol(first.module, "wide"));
    CHECK(wide(1.0) == doctest::Approx(2.718281828459045));

    const Built shared(source_of(1));  // loaded already: the same module
    CHECK(shared.cached);
    CHECK(shared.module == first.module);
  }
  const std::string path = cache.only_file();
  CHECK(path.ends_with(".so"));
  CHECK(fs::status(path).permissions() == fs::perms::owner_all);
  const Built again(source_of(1));
  CHECK(again.cached);
  CHECK(run(again.module) == 1.0f);
  const Built other(source_of(2));
  CHECK_FALSE(other.cached);
  CHECK(run(other.module) == 2.0f);
  CHECK(cache.files().size() == 2);
}

TEST_CASE("jit: the code stays until the last unload") {
  const TempCache cache;
  bool cached = false;
  KernelModule* a = cpu::build(source_of(3), cached);
  KernelModule* b = cpu::build(source_of(3), cached);
  auto mapped = [&] {
    return read_text("/proc/self/maps").find(cache.only_file()) != std::string::npos;
  };
  cpu::unload(a);
  CHECK(run(b) == 3.0f);
  CHECK(mapped());
  cpu::unload(b);
  CHECK_FALSE(mapped());
  cpu::unload(nullptr);
}

TEST_CASE("jit: a damaged or foreign cache file is rebuilt") {
  const TempCache cache;
  { const Built built(source_of(4)); }
  const std::string path = cache.only_file(), good = read_text(path);
  std::string flipped = good;
  flipped[flipped.size() / 2] ^= 1;
  auto rebuilt = [&] {
    const Built built(source_of(4));
    CHECK(run(built.module) == 4.0f);
    CHECK(read_text(cache.only_file()) == good);
    return !built.cached;
  };
  for (const std::string& bad :
       {std::string(),
        std::string("\x7f"
                    "ELF"),
        good.substr(0, 100), good.substr(0, good.size() - 1), good + "x", flipped}) {
    write_text(path, bad);
    CHECK(rebuilt());
  }
  CHECK_FALSE(rebuilt());
  REQUIRE(chmod(path.c_str(), 0722) == 0);  // another user could have written it
  CHECK(rebuilt());
  { const Built other(source_of(5)); }  // complete, but with another key
  for (const std::string& name : cache.files()) {
    if (name != path) fs::rename(name, path);
  }
  CHECK(rebuilt());
  fs::remove(path);
  fs::create_symlink("/dev/zero", path);
  CHECK(rebuilt());
  fs::remove(path);
  REQUIRE(mkfifo(path.c_str(), 0700) == 0);
  CHECK(rebuilt());
}

TEST_CASE("jit: a broken compiler's output is not cached for the next process") {
  const TempCache cache;
  const brrr::bench::TemporaryFolder folder;
  const std::string program = folder.file("c++"), text = source_of(14);
  // Runs the real compiler, then shell commands on its output file.
  const auto broken = [&](const std::string& words) {
    write_text(program,
               "#!/bin/sh\nc++ \"$@\" || exit\n[ \"$1\" = --version ] && exit\n"
               "while [ \"$1\" != -o ]; do shift; done\nf=$2\n" +
                   words + "\n");
    REQUIRE(chmod(program.c_str(), 0700) == 0);
    const Env own("BRRR_CXX", program.c_str());
    return error_of(text);
  };
  for (const char* words :
       {"head -c 9000 \"$f\" >half; mv half \"$f\"", "head -c 9000 /dev/urandom >\"$f\"",
        "rm \"$f\"; mkdir \"$f\"", ": >\"$f\""}) {
    CAPTURE(words);
    CHECK(broken(words).find("it wrote an incomplete shared object") != std::string::npos);
    CHECK(cache.files().empty());
  }
  CHECK(broken("echo 'int other;' | c++ -x c++ -shared -fPIC -o \"$f\" -") == "no error");
  CHECK(cache.files().size() == 1);
  const Env own("BRRR_CXX", program.c_str());
  const Built built(text);
  CHECK_THROWS_AS(cpu::symbol(built.module, "add"), Error);
  CHECK(cache.files().empty());
}

TEST_CASE("jit: a directory that others can write to is not used") {
  const TempCache cache;
  REQUIRE(chmod(cache.dir.c_str(), 0777) == 0);
  const std::string said = stderr_of([] {
    const Built built(source_of(6));
    CHECK(run(built.module) == 6.0f);
  });
  CHECK(cache.files().empty());
  CHECK(said.find(cache.dir) != std::string::npos);
  CHECK(said.find("others can write") != std::string::npos);
  const std::string again = stderr_of([] {
    const Built cached(source_of(6)), fresh(source_of(7));
    CHECK(cached.cached);
    CHECK(run(fresh.module) == 7.0f);
  });
  CHECK(again.empty());  // reported once
  CHECK(cache.files().empty());
  REQUIRE(chmod(cache.dir.c_str(), 0700) == 0);
  const Built usable(source_of(6));
  CHECK(cache.files().size() == 1);
}

TEST_CASE("jit: a full disk gives the same error message every time") {
  { const Built found(source_of(1)); }  // The compiler's version query needs space, too.
  const TempCache cache;
  rlimit before;
  REQUIRE(getrlimit(RLIMIT_FSIZE, &before) == 0);
  auto* const handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit none{0, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &none);
  const std::string said = error_of(source_of(16)), again = error_of(source_of(16));
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  CHECK(said.find(cache.dir + ": no source can be written: File too large") != std::string::npos);
  CHECK(again == said);
}

TEST_CASE("jit: a compiler that hangs is waited for once") {
  if (!std::getenv("BRRR_LONG_TESTS")) return;  // Two minutes.
  const TempCache cache;
  const brrr::bench::TemporaryFolder folder;
  const std::string program = folder.file("c++");
  write_text(program, "#!/bin/sh\n[ \"$1\" = --version ] && exec c++ \"$1\"\nsleep 1000\n");
  REQUIRE(chmod(program.c_str(), 0700) == 0);
  const Env own("BRRR_CXX", program.c_str());
  const std::string said = error_of(source_of(17));
  CHECK(said.find("it took too long and was stopped") != std::string::npos);
  const auto begin = std::chrono::steady_clock::now();
  CHECK(error_of(source_of(17)) == said);
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(30));
}

TEST_CASE("jit: several threads, the same and different text") {
  const TempCache cache;
  std::atomic<int> built_here{0}, wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 6; ++t) {
    threads.emplace_back([&, t] {
      const int constant = 10 + t % 2;
      const Built built(source_of(constant));
      built_here += !built.cached;
      float a[16] = {}, b[16] = {};
      reinterpret_cast<void (*)(float*, const float*, long)>(cpu::symbol(built.module, "add"))(a, b,
                                                                                               16);
      wrong += a[7] != 1.0f + static_cast<float>(constant);
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(wrong == 0);
  CHECK(built_here == 2);
  CHECK(cache.files().size() == 2);
}

TEST_CASE("jit: of processes that need the same kernel at once one builds it") {
  if (brrr::test::kThreadSanitizer) return;
  const TempCache cache;
  pid_t children[3];
  for (pid_t& child : children) {
    child = fork();
    if (child == 0) {
      bool cached = false;
      KernelModule* module = cpu::build(source_of(12), cached);
      _exit(run(module) == 12.0f ? cached : 9);
    }
  }
  int builders = 0;
  for (pid_t child : children) {
    int status = -1;
    waitpid(child, &status, 0);
    CHECK((status == 0 || (WIFEXITED(status) && WEXITSTATUS(status) == 1)));
    builders += status == 0;
  }
  CHECK(builders == 1);
  CHECK(cache.files().size() == 1);
}

TEST_CASE("jit: a compile error is reported with the compiler's message") {
  const TempCache cache;
  std::string bad = "extern \"C\" int f() {\n  return not_declared;\n}\n";
  const std::string text = error_of(bad);
  CAPTURE(text);
  CHECK(text.find("kernels:2:") != std::string::npos);
  CHECK(text.find("not_declared") != std::string::npos);
  CHECK(text.find("BRRR_KEEP_SOURCE=1") != std::string::npos);
  CHECK(cache.files().empty());
  for (int i = 0; i < 200; ++i) bad += "int g" + std::to_string(i) + " = not_declared;\n";
  CHECK(error_of(bad).size() < 4000);

  const Env keep("BRRR_KEEP_SOURCE", "1");
  const std::string kept = error_of(bad);
  CHECK(kept.find("source: " + cache.only_file()) != std::string::npos);
  CHECK(read_text(cache.only_file()).find("return not_declared;") != std::string::npos);
}

TEST_CASE("jit: no compiler") {
  const TempCache cache;
  {
    const Env off("BRRR_JIT", "off");
    CHECK(error_of(source_of(13)) == "no compiler: BRRR_JIT=off");
  }
  {
    const Env path("PATH", ""), cxx("CXX", "nonesuch"), own("BRRR_CXX", nullptr);
    const std::string text = error_of(source_of(13));
    CAPTURE(text);
    CHECK(text.find("CXX=nonesuch (not found)") != std::string::npos);
    CHECK(text.find("clang++ (not found)") != std::string::npos);
    CHECK(text.find("install g++") != std::string::npos);
  }
  {
    const Env own("BRRR_CXX", "  ");
    CHECK(error_of(source_of(13)).find("BRRR_CXX=   (names no program)") != std::string::npos);
  }
  {
    const Env own("BRRR_CXX", "/bin/false");
    CHECK(error_of(source_of(13)).find("BRRR_CXX=/bin/false (does not run)") != std::string::npos);
  }
  {
    const Env own("BRRR_CXX", "/bin/echo");  // it runs, but builds nothing
    CHECK(error_of(source_of(13)).find("did not build") != std::string::npos);
  }
  CHECK(cache.files().empty());
  const Built built(source_of(13));  // and the process continues
  CHECK(run(built.module) == 13.0f);
}

TEST_CASE("jit: every compiler of the machine, with the user's options, gives equal bits") {
  const TempCache cache;
  std::vector<float> results;
  for (const char* command : {"g++", "clang++", "g++ -ffast-math", "clang++ -Ofast"}) {
    const Env own("BRRR_CXX", command);
    try {
      cpu::find_host_compiler();
    } catch (const Error&) {
      continue;  // not on this machine
    }
    const Built built(
        "extern \"C\" float f(float x, float y) {\n"
        "  using namespace brrr::vx;\n"
        "  f32 v = tanh(log(splat(x))) / splat(3.0f) * splat(y) + splat(y);\n"
        "  return reduce(v, [](f32 a, f32 b) { return a + b; });\n"
        "}\n");
    const auto f = reinterpret_cast<float (*)(float, float)>(cpu::symbol(built.module, "f"));
    results.push_back(f(2.7f, 1.3e-3f));
  }
  for (float x : results) CHECK(x == results[0]);
}

TEST_CASE("jit: builds with the standard descriptors closed") {
  const TempCache cache;
  const int in = dup(0), out = dup(1);
  close(0);
  close(1);
  const std::string text = error_of("not C++");
  float result = 0;
  {
    const Built built(source_of(14));
    result = run(built.module);
  }
  dup2(in, 0);
  dup2(out, 1);
  close(in);
  close(out);
  CHECK(result == 14.0f);
  CHECK(text.find("kernels:1:") != std::string::npos);
}

TEST_CASE("jit: an injected build failure") {
  const TempCache cache;
  {
    const Env always("BRRR_JIT_FAIL", "1");
    CHECK(error_of(source_of(15)).find("told to fail") != std::string::npos);
  }
  CHECK(error_of(source_of(15)) == "no error");
}

// In a separate process, started from this program.
TEST_CASE("jit: a process may end while threads build") {
  if (std::getenv("BRRR_TEST_ENDS")) {
    static std::atomic<int> built{0};
    for (int thread = 0; thread < 3; ++thread) {
      std::thread([thread] {
        for (int k = 0;; ++k, ++built) {
          const double by = thread + 1000.0 * k;
          auto step = brrr::step(
              [by](const brrr::Tensor& x) { return (matmul(x, x) * by).exp().sum({-1}); },
              brrr::StepOptions{.build_at_first_call = true});
          step(brrr::ones({256, 256}));
        }
      }).detach();
    }
    while (built < 20) usleep(1000);
    std::exit(0);
  }
  const std::string self = std::filesystem::read_symlink("/proc/self/exe");
  const std::string again = "BRRR_TEST_ENDS=1 BRRR_NUM_THREADS=2 '" + self +
                            "' '--test-case=jit: a process may end*' > /dev/null 2>&1";
  for (int run = 0; run < 3; ++run) CHECK(std::system(again.c_str()) == 0);
}
