// The module brrr_cuda by itself: the part that works without a GPU, and on a GPU the rest.

#include "backends/cuda/driver.h"

#include <doctest/doctest.h>

#ifdef BRRR_CUDA_MODULE

#include <dlfcn.h>
#include <sys/auxv.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "tests/cuda_module.h"
#include "tests/sanitizer.h"

using namespace brrr;
using namespace brrr::test::cuda;

namespace {

int lines_of(const std::string& text) {
  return static_cast<int>(std::count(text.begin(), text.end(), '\n')) + 1;
}

// Machine code for an NVIDIA GPU: an ELF file for machine 190.
bool is_cubin(const std::string& image) {
  return image.size() > 64 && image.starts_with("\177ELF") && image[18] == char(190) &&
         image[19] == 0;
}

// The compute capability, times 10, that the code is for: where depends on the ELF file's version.
int architecture_of(const std::string& cubin) {
  uint32_t flags = 0;
  std::memcpy(&flags, cubin.data() + 48, sizeof flags);
  return static_cast<int>(cubin[8] < 8 ? flags & 0xff : flags >> 8 & 0xff);
}
bool is_ptx_for(const std::string& image, int architecture) {
  return contains(image, "\n.target sm_" + std::to_string(architecture) + "\n");
}

std::string written(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version / 10 % 100);
}
// As an error lists them: the versions of compiler, driver and device.
std::string versions(int major, int minor) {
  Properties properties;
  std::string words;
  const bool there = open_device(properties, words);
  return "NVRTC " + written(boundary().compiler_version()) +
         (there ? ", driver for CUDA " + written(properties.driver_version) : ", no driver") +
         ", device of compute capability " + std::to_string(major) + "." + std::to_string(minor);
}

}  // namespace

TEST_CASE("cuda module: it loads without a driver, is of this build and has all functions") {
  CHECK(boundary().abi == kAbi);
  CHECK(std::string(boundary().name) == "cuda");
  auto complete = [](const auto& functions) {
    void* entries[sizeof functions / sizeof(void*)];
    std::memcpy(entries, &functions, sizeof functions);
    return std::find(std::begin(entries), std::end(entries), nullptr) == std::end(entries);
  };
  CHECK(complete(boundary()));
  CHECK(boundary().compiler_version() >= 12040);
}

TEST_CASE("cuda module: kernel text becomes machine code for each architecture") {
  std::string times;
  for (int major : {8, 9, 10, 9, 9}) {
    const Compiled c = compile(doubling, major);
    if (major == 10 && boundary().compiler_version() < 12080) {
      CHECK(contains(c.image, ".target sm_90"));
    } else {
      CHECK_MESSAGE(is_cubin(c.image), c.failure);
    }
    times += " " + std::to_string(int(c.ms + 0.5));
  }
  MESSAGE("compile times in ms, for 8.0, 9.0, 10.0, 9.0, 9.0:" << times);
}

TEST_CASE("cuda module: shuffles, votes, mma and named functions need no headers") {
  const Compiled c = compile(
      kernel("several",
             "float c[4] = {}; unsigned a[4] = {}, b[2] = {};\n"
             "extern __shared__ float4 memory[];\n"
             "memory[threadIdx.x].x = fmaf(p.x[0], p.x[1], sqrtf(p.x[2])); __syncthreads();\n"
             "asm volatile(\"mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
             "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\"\n"
             ": \"+f\"(c[0]), \"+f\"(c[1]), \"+f\"(c[2]), \"+f\"(c[3])\n"
             ": \"r\"(a[0]), \"r\"(a[1]), \"r\"(a[2]), \"r\"(a[3]), \"r\"(b[0]), \"r\"(b[1]));\n"
             "const float sum = __shfl_xor_sync(~0u, c[0] + memory[127].x, 16); __syncwarp();\n"
             "p.y[0] = __ballot_sync(~0u, sum > 1) ? __int_as_float(p.n) : sum;"),
      8);
  CHECK_MESSAGE(is_cubin(c.image), c.failure);
}

TEST_CASE("cuda module: the Toolkit is found where it was linked, also by NVRTC itself") {
  // Without the loader's cache, which on this machine may name the Toolkit's folder.
  Dl_info loader;
  if (test::kAddressSanitizer || test::kThreadSanitizer) return;
  REQUIRE(dladdr(reinterpret_cast<void*>(getauxval(AT_BASE)), &loader));
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  const std::string run = loader.dli_fname + std::string(" --inhibit-cache '") + self +
                          "' -m -tc='cuda module: shuffles*'";
  CHECK(std::system(run.c_str()) == 0);
}

TEST_CASE("cuda module: pitfall B8: a syntax error gives the start of the log, three versions") {
  const Compiled c = compile(kernel("broken", "int unused; p.y[0] = undeclared;"), 9);
  CHECK(c.image.empty());
  CHECK(contains(c.failure, "test.cu(3): error: identifier \"undeclared\" is undefined"));
  CHECK_MESSAGE(contains(c.failure, "NVRTC_ERROR_COMPILATION; " + versions(9, 0)), c.failure);
  std::string many;
  for (int i = 0; i < 60; ++i) many += "int v" + std::to_string(i) + " = wrong;\n";
  CHECK(lines_of(compile(kernel("broken", many), 9).failure) <= 17);
  // Warnings come before the error, and do not displace it.
  std::string warned;
  for (int i = 0; i < 60; ++i) warned += "int v" + std::to_string(i) + ";\n";
  CHECK(contains(compile(kernel("broken", warned + "wrong = 1;"), 9).failure, "\"wrong\""));
}

TEST_CASE("cuda module: pitfall B8: the newest architecture both know, machine code or PTX") {
  std::vector<int> known;  // Times 10, as the device's.
  for (int wanted = 70; wanted <= 125; ++wanted) {
    const Compiled c = compile(doubling, wanted / 10, wanted % 10);
    CAPTURE(wanted);
    if (is_cubin(c.image)) {
      CHECK(architecture_of(c.image) == wanted);
      known.push_back(wanted);
    } else if (known.empty()) {
      CHECK_MESSAGE(contains(c.failure, "is older than all this compiler supports; " +
                                            versions(wanted / 10, wanted % 10)),
                    c.failure);
    } else {
      CHECK_MESSAGE(is_ptx_for(c.image, known.back()), c.failure);
    }
  }
  for (int wanted : {80, 90}) CHECK(std::count(known.begin(), known.end(), wanted) == 1);
  const Compiled newer = compile(doubling, 99);
  CHECK_MESSAGE(is_ptx_for(newer.image, known.back()), newer.failure);
  CHECK(contains(newer.image, ".entry doubling"));
  CHECK(newer.image.ends_with('\0'));
  const Compiled older = compile(doubling, 1);
  CHECK_MESSAGE(contains(older.failure,
                         "compute capability 1.0 is older than all this compiler "
                         "supports; " +
                             versions(1, 0)),
                older.failure);
}

TEST_CASE("cuda module: threads compile concurrently, each with its own error message") {
  Compiled good, bad;
  std::thread other([&] { good = compile(doubling, 9); });
  bad = compile(kernel("broken", "wrong = 1;"), 9);
  const std::string words = bad.failure;
  other.join();
  CHECK(is_cubin(good.image));
  CHECK(contains(words, "\"wrong\""));
}

TEST_CASE("cuda module: a failure's message is valid while a thread's last objects are destroyed") {
  std::string first, last;
  std::thread([&] {
    struct Last {
      std::string* to;
      ~Last() { *to = compile("", 1).failure; }
    };
    thread_local const Last before_the_message{&last};
    first = compile("", 1).failure;
  }).join();
  CHECK(contains(first, "older than all"));
  CHECK(last == first);
}

TEST_CASE("cuda module: without a GPU one line says why, and every other call returns an error") {
  Properties properties;
  std::string words;
  if (open_device(properties, words)) {
    MESSAGE("left out: there is a GPU, " << properties.name);
    return;
  }
  MESSAGE("without a GPU: " << words);
  CHECK(lines_of(words) == 1);
  const Driver& driver = boundary();
  auto refused = [](Failure failure) {
    return failure && std::string(failure) == "no GPU is open";
  };
  void* p = &words;
  CHECK(refused(driver.allocate(&p, 1)));
  CHECK(p == nullptr);
  CHECK(refused(driver.allocate_pinned(&p, 1)));
  Stream* stream = nullptr;
  CHECK(refused(driver.make_stream(&stream)));
  CHECK(refused(driver.begin_capture(stream)));
  Graph* graph = nullptr;
  size_t nodes = 0;
  CHECK(refused(driver.end_capture(stream, &graph, &nodes)));
  bool done = true;
  CHECK(refused(driver.arena(1, &p, &done)));
  CHECK(p == nullptr);
  CHECK_FALSE(done);
  Event* event = nullptr;
  CHECK(refused(driver.make_event(&event)));
  Module* module = nullptr;
  CHECK(refused(driver.load("", 0, &module)));
  Gemm* plan = nullptr;
  const GemmShape shape{};
  CHECK(refused(boundary().choose(&shape, 0, &plan)));
}

// --- On a GPU ------------------------------------------------------------------------------------

namespace {

// A whole number below 2048 as an element of `type`.
std::string element(GemmShape::Type type, int value) {
  uint64_t bits = 0;
  size_t bytes = 2;
  if (type == GemmShape::Float64) {
    bits = std::bit_cast<uint64_t>(double(value)), bytes = 8;
  } else if (type == GemmShape::Float16) {
    const int exponent = value ? std::bit_width(unsigned(value)) - 1 : 0;
    if (value) bits = uint64_t(exponent + 15) << 10 | ((value << 10 >> exponent) & 0x3ff);
  } else {
    bits = std::bit_cast<uint32_t>(float(value)), bytes = 4;
    if (type == GemmShape::BFloat16) bits >>= 16, bytes = 2;
  }
  return {reinterpret_cast<const char*>(&bits), bytes};
}

struct Matrices {
  std::vector<int> values;
  std::string bytes;
  int at(int64_t i) const { return values[static_cast<size_t>(i)]; }
};

Matrices numbers(GemmShape::Type type, int64_t count, int seed) {
  Matrices made;
  for (int64_t i = 0; i < count; ++i) {
    made.values.push_back(int((i * 7 + seed) % 5 % 3));
    made.bytes += element(type, made.values.back());
  }
  return made;
}

void check_product(Device& device, const GemmShape& s) {
  const Matrices a = numbers(s.type, s.batch * s.stride_a, 1);
  const Matrices b = numbers(s.type, s.batch * s.stride_b, 3);
  std::string wanted;
  for (int64_t i = 0; i < s.batch * s.m * s.n; ++i) {
    const int64_t z = i / (s.m * s.n), row = i / s.n % s.m, column = i % s.n;
    int sum = 0;
    for (int64_t k = 0; k < s.k; ++k) {
      sum += a.at(z * s.stride_a + (s.trans_a ? k * s.lda + row : row * s.lda + k)) *
             b.at(z * s.stride_b + (s.trans_b ? column * s.ldb + k : k * s.ldb + column));
    }
    wanted += element(s.type, sum);
  }
  const Driver& tools = boundary();
  constexpr size_t workspace_bytes = 4 << 20;
  void *pa = device.put(a.bytes), *pb = device.put(b.bytes), *pc = device.allocate(wanted.size());
  void* workspace = device.allocate(workspace_bytes);
  Gemm* plan = nullptr;
  REQUIRE_DONE(tools.choose(&s, workspace_bytes, &plan));
  REQUIRE_DONE(tools.multiply(plan, pa, pb, pc, workspace, workspace_bytes, device.stream));
  CHECK(device.get(pc, wanted.size()) == wanted);
  const char* misaligned = static_cast<const char*>(pa) + 2;
  CHECK(tools.multiply(plan, misaligned, pb, pc, workspace, workspace_bytes, device.stream));
}

}  // namespace

TEST_CASE("cuda module: on a GPU, memory, copies, events and a kernel") {
  Properties properties;
  std::string words;
  if (!open_device(properties, words)) {
    MESSAGE("skipped: " << words);
    return;
  }
  CHECK(properties.memory_bytes > 0);
  CHECK(properties.shared_bytes >= 48 << 10);
  CHECK(properties.memory_bandwidth >= 0);
  Device device;
  const Driver& driver = device.driver;
  void* none = &device;
  REQUIRE_DONE(driver.allocate(&none, size_t{1} << 50));
  CHECK(none == nullptr);

  constexpr int n = 1000;
  std::vector<float> x(n);
  for (int i = 0; i < n; ++i) x[size_t(i)] = float(i);
  void* from = device.put({reinterpret_cast<char*>(x.data()), n * sizeof(float)});
  void* to = device.allocate(n * sizeof(float));
  REQUIRE_DONE(driver.fill(to, 255, n * sizeof(float), device.stream));

  const size_t shared = size_t(properties.shared_bytes);  // more than a kernel gets unasked
  const Compiled code = compile(doubling, properties.major, properties.minor);
  REQUIRE_MESSAGE(code.failure.empty(), code.failure);
  Module* module = nullptr;
  Function* function = nullptr;
  REQUIRE_DONE(driver.load(code.image.data(), code.image.size(), &module));
  REQUIRE_DONE(driver.function(module, "doubling", shared, &function));
  CHECK(driver.function(module, "nothing", 0, &function));
  struct {
    const void* x;
    void* y;
    int n;
  } params{from, to, n};
  const unsigned grid[3] = {(n + 127) / 128, 1, 1}, block[3] = {128, 1, 1};
  // A launch from a thread that has not used the device before.
  std::thread([&] {
    CHECK(driver.launch(function, grid, block, shared, &params, sizeof params, device.stream) ==
          nullptr);
  }).join();
  Event* event = nullptr;
  REQUIRE_DONE(driver.make_event(&event));
  REQUIRE_DONE(driver.record(event, device.stream));
  REQUIRE_DONE(driver.wait(event));
  for (float& value : x) value *= 2;
  CHECK(device.get(to, n * sizeof(float)) ==
        std::string(reinterpret_cast<char*>(x.data()), n * sizeof(float)));
  CHECK(driver.launch(function, grid, block, 0, &params, sizeof params, nullptr));
  REQUIRE_DONE(driver.unload(module));
}

TEST_CASE("cuda module: on a GPU, products of every type and layout") {
  Properties properties;
  std::string words;
  if (!open_device(properties, words)) {
    MESSAGE("skipped: " << words);
    return;
  }
  Device device;
  for (auto type :
       {GemmShape::Float32, GemmShape::Float64, GemmShape::BFloat16, GemmShape::Float16}) {
    for (int flags = 0; flags < 16; ++flags) {
      GemmShape s{};
      s.type = type;
      s.tf32 = flags & 4, s.trans_a = flags & 1, s.trans_b = flags & 2;
      const bool large = flags & 8;  // and all aligned but the step from one matrix to the next
      s.m = large ? 64 : 5, s.n = large ? 64 : 7, s.k = large ? 64 : 33, s.batch = 3;
      s.lda = (s.trans_a ? s.m : s.k) + !large, s.ldb = (s.trans_b ? s.k : s.n) + 2 * !large;
      s.ldc = s.n, s.stride_c = s.m * s.n;
      s.stride_a = (s.trans_a ? s.k : s.m) * s.lda + 1;
      s.stride_b = (s.trans_b ? s.n : s.k) * s.ldb;
      INFO("type " << int(type) << ", flags " << flags);
      check_product(device, s);
    }
  }
}

#else

TEST_CASE("cuda module") { MESSAGE("skipped: the module brrr_cuda was not built"); }

#endif
