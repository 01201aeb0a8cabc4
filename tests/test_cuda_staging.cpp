// Copies to and from the device, the launch of kernels, and how a module is found and refused.

#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "brrr.h"
#include "backends/cpu/host_compiler.h"
#include "backends/cuda/backend.h"
#include "backends/cuda/device.h"
#include "backends/cuda/kernels.h"
#include "backends/cuda/support.h"
#include "core/device_link.h"
#include "ops/program/cuda.h"
#include "ops/reduction_ops.h"
#include "tests/cuda_cases.h"
#include "tests/emulator_calls.h"
#include "tests/temp_cache.h"

using namespace brrr;
using namespace brrr::test;
using namespace brrr::cuda;

namespace {

// Bytes that depend on their position.
std::vector<char> pattern(size_t n, int salt) {
  std::vector<char> v(n);
  for (size_t i = 0; i < n; ++i) v[i] = static_cast<char>((i * 31 + i / 251) * 7 + salt);
  return v;
}

struct Memory {
  explicit Memory(size_t bytes) {
    cuda::check(device().driver->allocate(&p, bytes), "allocate");
    REQUIRE(p);
  }
  ~Memory() { device().driver->release(p); }
  Memory(const Memory&) = delete;
  void* p = nullptr;
};

// The output of a child process that opens the device.
std::string opened_with(const std::string& module) {
  const Env own("BRRR_CUDA_MODULE", module.c_str());
  const std::string self = fs::read_symlink("/proc/self/exe");
  return cpu::run_process({self, "-ns", "-tc=cuda: (child) opens the device"}, 60).output;
}

}  // namespace

TEST_CASE("cuda: copies of any size through the staging ring, on a lazy device too") {
  if (!have_device()) return;
  for (const char* lazy : {"0", "1"}) {
    const EmulatorSetting late("BRRR_EMULATOR_LAZY", lazy);
    constexpr size_t kSlot = size_t{4} << 20;
    for (size_t n :
         {size_t{0}, size_t{1}, size_t{511}, kSlot - 1, kSlot, kSlot + 1, 5 * kSlot + 9}) {
      const Memory memory(std::max<size_t>(n, 1));
      const std::vector<char> want = pattern(n, 3);
      std::vector<char> from = want, to(n, 'x');
      cuda::to_device(memory.p, from.data(), n);
      std::fill(from.begin(), from.end(), 'y');  // Its bytes have been staged.
      cuda::to_host(to.data(), memory.p, n);
      CHECK(to == want);
    }
    // Many small copies: each slot is waited for before it is filled again.
    const Memory memory(64 * 1000);
    for (int i = 0; i < 1000; ++i) {
      const auto piece = pattern(64, i);
      cuda::to_device(static_cast<char*>(memory.p) + 64 * i, piece.data(), 64);
    }
    std::vector<char> all(64 * 1000);
    cuda::to_host(all.data(), memory.p, all.size());
    bool same = true;
    for (int i = 0; i < 1000; ++i) {
      const auto piece = pattern(64, i);
      same &= std::equal(piece.begin(), piece.end(), all.begin() + 64 * i);
    }
    CHECK(same);
  }
}

TEST_CASE("cuda: a fault recorded by kernels is raised once, by the read that waits for it") {
  if (!have_device()) return;
  const Memory memory(64);
  char byte = 1;
  cuda::to_host(&byte, memory.p, 1);
  Fault fault;
  cuda::to_host(&fault, device_fault(), sizeof fault);  // For its serial number.
  fault.set = 1;
  fault.op = registry()[3]->index;
  fault.value = 12;
  fault.limit = 7;
  cuda::to_device(device_fault(), &fault, sizeof fault);
  cuda::to_device(memory.p, &byte, 1);  // Writes do not raise.
  const std::string said = error_of([&] { cuda::to_host(&byte, memory.p, 1); });
  CHECK_MESSAGE(said.find(std::string(registry()[3]->name) + ": index 12 is out of range") == 0,
                said);
  CHECK(error_of([&] { cuda::to_host(&byte, memory.p, 1); }).empty());
}

TEST_CASE("cuda: a fault recorded after the one that is raised is raised next, and then none") {
  if (!have_device()) return;
  const Memory memory(64);
  Fault fault;
  cuda::to_host(&fault, device_fault(), sizeof fault);
  fault.set = fault.last_set = fault.count = 1;
  fault.op = fault.last_op = registry()[3]->index;
  fault.value = fault.last_value = 12;
  fault.limit = fault.last_limit = 7;
  cuda::to_device(device_fault(), &fault, sizeof fault);
  HostCopy* const early = device_queue::copy_out(memory.p, 1);
  fault.count = 2;
  fault.last_value = 20;
  cuda::to_device(device_fault(), &fault, sizeof fault);
  const auto said = [&] {
    char byte = 0;
    return error_of([&] { device_queue::read(*early, &byte, 0, 1); });
  };
  CHECK(contains(said(), ": index 12 is out of range"));
  CHECK(contains(said(), ": index 20 is out of range"));
  CHECK(said() == "");
  device_queue::drop(early);
}

TEST_CASE("cuda: without pinned memory a result is not copied early") {
  if (!have_device()) return;
  static Driver poor;
  poor = *device().driver;
  const Held replaced(device().driver, static_cast<const Driver*>(&poor));
  const Memory memory(64);
  std::vector<HostCopy*> some{device_queue::copy_out(memory.p, 64)};  // There is memory for a few.
  CHECK(some[0]);
  poor.allocate_pinned = [](void**, size_t) -> Failure { return "out of memory"; };
  for (int i = 0; i < 5000 && some.back(); ++i)
    some.push_back(device_queue::copy_out(memory.p, 64));
  CHECK(!some.back());
  some.pop_back();
  for (HostCopy* c : some) device_queue::drop(c);
  cuda::synchronize();
}

TEST_CASE("cuda: of thousands of results that are held, the last are not copied early") {
  if (!have_device()) return;
  const Memory memory(64);
  std::vector<HostCopy*> all;
  for (HostCopy* c; all.size() < 5000 && (c = device_queue::copy_out(memory.p, 64));)
    all.push_back(c);
  CHECK(all.size() <= 4096);
  for (HostCopy* c : all) device_queue::drop(c);
  cuda::synchronize();
}

TEST_CASE("cuda: code that cannot be cached because the disk is full still runs") {
  const TempCache cache;
  Driver compiler{};
  compiler.compile = [](const char*, const char*, int, int, const char** image,
                        size_t* bytes) -> Failure {
    static const std::string code(100000, '\0');
    *image = code.data();
    *bytes = code.size();
    return nullptr;
  };
  compiler.compiler_version = [] { return 1; };
  rlimit old;
  getrlimit(RLIMIT_FSIZE, &old);
  auto* const handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{8192, old.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  size_t bytes = 0;
  const std::string why =
      error_of([&] { bytes = machine_code(compiler, "a text", "k", 8, 0).size(); });
  setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, handler);
  CHECK(why == "");
  CHECK(bytes == 100000);
}

TEST_CASE("cuda: the code cache is keyed by text, compiler and architecture") {
  const TempCache cache;
  static int version, compiled;
  version = 1, compiled = 0;
  Driver compiler{};
  compiler.compile = [](const char*, const char*, int, int, const char** image,
                        size_t* bytes) -> Failure {
    ++compiled, *image = "code", *bytes = 4;
    return nullptr;
  };
  compiler.compiler_version = [] { return version; };
  const auto compiles = [&](const char* text, int major, int minor) {
    const int before = compiled;
    CHECK(machine_code(compiler, text, "k", major, minor) == "code");
    return compiled > before;
  };
  CHECK(compiles("a", 8, 0));
  CHECK_FALSE(compiles("a", 8, 0));
  CHECK(compiles("b", 8, 0));
  CHECK(compiles("a", 8, 6));
  CHECK(compiles("a", 9, 0));
  version = 2;
  CHECK(compiles("a", 8, 0));
}

TEST_CASE("cuda: only reads wait for the device") {
  if (!have_device()) return;
  const Tensor x = on_gpu(sampled({100, 30}, kFloat32));
  x.exp();  // Builds the kernels.
  x.sum({0});
  const auto before = device().waits.load();
  for (int i = 0; i < 10; ++i) {
    Tensor y = x.exp();
    y = y + 1.0;
    y.sum({0});
    y.to(kCUDA);
    on_gpu(sampled({100, 30}, kFloat32, -1, 1, i));
  }
  CHECK(device().waits.load() == before);
  x.sum().item<float>();
  CHECK(device().waits.load() == before + 1);
  CHECK(device_link::waited_s() == 0);  // The wait is over.
}

TEST_CASE("cuda: a scalar and the fault record reach the host in one copy") {
  if (!have_device() || !counters()) return;
  const Tensor loss = on_gpu(sampled({1000}, kFloat32)).sum(), many = on_gpu(ones({5000}));
  auto step = brrr::step([](const Tensor& x) { return x * 2.0; });
  for (int i = 0; i < 3; ++i) step(loss);
  const auto counted = [&](const Tensor& t, unsigned long copies, unsigned long waits) {
    const emulator::Counters before = *counters();
    t.to_vector<float>();
    const emulator::Counters after = *counters();
    CHECK(after.copies_to_host - before.copies_to_host == copies);
    CHECK(after.waits - before.waits == waits);
  };
  counted(loss, 1, 1);
  counted(many.slice(0, 0, 1024), 1, 1);
  counted(many, 2, 1);
  counted(step(loss), 0, 1);  // Copied since the replay.
}

TEST_CASE("cuda: the multipliers that divide by a dim's size are exact below 2^31") {
  constexpr int64_t kEnd = int64_t{1} << 31;
  std::vector<int64_t> sizes = {1, 2, 3, 5, 7, 641, 65535, 65536, 65537, 6700417, kEnd - 1, kEnd};
  for (int bit = 2; bit < 31; ++bit) {
    for (int64_t d : {-1, 0, 1}) sizes.push_back((int64_t{1} << bit) + d);
  }
  for (int64_t size : sizes) {
    const program::Divisor by(size);
    const auto mul = static_cast<uint64_t>(by.mul);
    const auto shift = by.shift;
    for (int64_t q = 0; q < kEnd; q = q * 3 + size) {
      for (int64_t d : {-1, 0, 1}) {
        const int64_t r = std::clamp<int64_t>(q - q % size + d, 0, kEnd - 1);
        if (static_cast<int64_t>(static_cast<uint64_t>(r) * mul >> shift) != r / size) {
          FAIL_CHECK(r, " / ", size);
        }
      }
    }
    const auto r = static_cast<uint64_t>(kEnd - 1);
    CHECK(static_cast<int64_t>(r * mul >> shift) == (kEnd - 1) / size);
  }
}

TEST_CASE("cuda: a grid beyond CUDA's limits is refused with the kernel's name") {
  if (!have_device()) return;
  const Grid grid{1, 70000, 1};
  const std::string said =
      error_of([&] { device_queue::launch(nullptr, "wide", grid, 32, nullptr, 0); });
  CHECK_MESSAGE(contains(said, "wide needs a grid of 1 x 70000 x 1 blocks"), said);
}

TEST_CASE("cuda: a column of more blocks than the height of a grid") {
  if (!have_device()) return;
  const int64_t rows = 65536 * 256 + 5;  // In blocks of 256.
  const Tensor x = ones({rows, 2}, kUInt8, kCUDA);
  CHECK(on_cpu(x.sum({0})).to_vector<int64_t>() == std::vector<int64_t>{rows, rows});
}

TEST_CASE("cuda: (child) opens the device" * doctest::skip()) {
  const std::string why = error_of([] { backend(DeviceType::CUDA); });
  std::printf("<%s>\n", why.c_str());
}

TEST_CASE("pitfall B8: a file that is no module, or of another build, is refused with a message") {
  if (!have_device()) return;
  const brrr::bench::TemporaryFolder temporary;
  const std::string folder = temporary.path.string();
  const auto module = [&](const std::string& name, const std::string& text) {
    write_text(folder + "/" + name + ".cpp", text);
    std::vector<std::string> command = cpu::find_host_compiler().command;
    command.insert(command.end(), {"-shared", "-fPIC", folder + "/" + name + ".cpp", "-o",
                                   folder + "/" + name + ".so"});
    REQUIRE(cpu::run_process(command, 60, folder).status == 0);
    return folder + "/" + name + ".so";
  };
  const std::string old = module("old",
                                 "struct { int abi; const char* name; void *driver, *tools; } b = "
                                 "{-1, \"old\", 0, 0};\n"
                                 "extern \"C\" void* brrr_cuda_boundary() { return &b; }\n");
  std::string said = opened_with(old);
  CHECK_MESSAGE(contains(said, "<cuda: " + old + " is of another build (interface -1, wanted"),
                said);
  said = opened_with(module("other", "int nothing;\n"));
  CHECK_MESSAGE(contains(said, "is not a brrr module"), said);
  if (const char* module = std::getenv("BRRR_CUDA_MODULE"); module && counters()) {
    const Env older("BRRR_EMULATOR_CAPABILITY", "75");
    said = opened_with(module);
    CHECK_MESSAGE(contains(said,
                           "<cuda: emulated device has compute capability 7.5, and brrr's "
                           "kernels need 8.0 or newer; use brrr::kCPU>"),
                  said);
  }
  said = opened_with(folder + "/missing.so");
  CHECK_MESSAGE(contains(said, "missing.so"), said);
  CHECK_MESSAGE(contains(said, "brrr::kCPU"), said);
  fs::remove_all(folder);
}
