// The emulated device by itself, through the boundary that the library uses.
#include <doctest/doctest.h>
#include <dlfcn.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "backends/cuda/driver.h"

using namespace brrr::cuda;

namespace {

const Boundary& boundary() {
  static const Boundary& found = []() -> const Boundary& {
    void* module = dlopen(BRRR_EMULATOR_MODULE, RTLD_NOW | RTLD_LOCAL);
    REQUIRE_MESSAGE(module, dlerror());
    void* get = dlsym(module, "brrr_cuda_boundary");
    REQUIRE(get);
    return *reinterpret_cast<const Boundary* (*)()>(get)();
  }();
  return found;
}
const Driver& driver() {
  return *boundary().driver;
}
const Tools& tools() {
  return *boundary().tools;
}

std::string words(Failure f) {
  return f ? f : "no failure";
}
#define GOOD(call) REQUIRE(words(call) == "no failure")
#define CHECK_FAILS(call, part)                                \
  do {                                                         \
    const std::string said = words(call);                      \
    CHECK_MESSAGE(said.find(part) != std::string::npos, said); \
  } while (0)

// Opens the device with one setting changed; in the end with none.
struct Device {
  explicit Device(const char* name = nullptr, const char* value = nullptr) : name(name) {
    if (name) setenv(name, value, 1);
    GOOD(driver().open(0, &properties));
    GOOD(driver().make_stream(&stream));
  }
  Device(const Device&) = delete;
  ~Device() {
    for (void* p : allocated) driver().release(p);
    if (name) unsetenv(name);
    driver().open(0, &properties);
  }

  template <class T> T* device(const std::vector<T>& values) {
    void* p = nullptr;
    GOOD(driver().allocate(&p, values.size() * sizeof(T)));
    REQUIRE(p);
    allocated.push_back(p);
    GOOD(driver().copy(p, values.data(), values.size() * sizeof(T), Way::ToDevice, stream));
    return static_cast<T*>(p);
  }
  template <class T> std::vector<T> host(const T* p, size_t n) {
    std::vector<T> values(n);
    GOOD(driver().copy(values.data(), p, n * sizeof(T), Way::ToHost, stream));
    GOOD(driver().synchronize(stream));
    return values;
  }
  template <class Params>
  Failure launch(Function* f, unsigned blocks, unsigned threads, const Params& p,
                 size_t shared = 0) {
    const unsigned grid[3] = {blocks, 1, 1}, block[3] = {threads, 1, 1};
    return driver().launch(f, grid, block, shared, &p, sizeof p, stream);
  }

  const char* name;
  Properties properties{};
  Stream* stream = nullptr;
  std::vector<void*> allocated;
};

// One program for all cases: compiling is the slow part.
const char* const program = R"(
using namespace brrr::vx;

struct Vectors { const float* a; const float* b; float* c; int n; };
KERNEL(add, Vectors, 256) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= p.n) return;
  p.c[i] = p.a[i] + p.b[i];
}
KERNEL(where, Vectors, 256) {  // unravels its three-dimensional index
  const int block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  const int thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  p.c[block * (blockDim.x * blockDim.y * blockDim.z) + thread] = block * 1000 + thread;
}
KERNEL(barrier_in_loop, Vectors, 256) {
  if (threadIdx.x == 3) __syncthreads();
}

// As a template, which has its shared memory as a static variable of vague linkage.
template <class T>
__device__ T sum_of_block(T x) {
  __shared__ T partial[256];
  partial[threadIdx.x] = x;
  __syncthreads();
  for (int step = blockDim.x / 2; step > 0; step /= 2) {
    if (threadIdx.x < step) partial[threadIdx.x] += partial[threadIdx.x + step];
    __syncthreads();
  }
  return partial[0];
}
BLOCK_KERNEL(block_sum, Vectors, 256) {
  const float sum = sum_of_block(p.a[blockIdx.x * blockDim.x + threadIdx.x]);
  if (threadIdx.x == 0) p.c[blockIdx.x] = sum;
}
BLOCK_KERNEL(race, Vectors, 256) {  // block_sum without its barriers
  __shared__ float partial[256];
  partial[threadIdx.x] = p.a[threadIdx.x];
  p.c[threadIdx.x] = partial[(threadIdx.x + 1) % blockDim.x];
}
BLOCK_KERNEL(early, Vectors, 256) {  // threads that have returned hold up nobody
  __shared__ float x;
  if (threadIdx.x >= 40) return;
  if (threadIdx.x == 7) x = 5;
  __syncthreads();
  p.c[threadIdx.x] = x;
}
BLOCK_KERNEL(warp_sums, Vectors, 256) {
  const float x = p.a[threadIdx.x];
  float sum = x;
  for (int mask = 16; mask > 0; mask /= 2) sum += shuffle_xor(sum, mask);
  double down = x;
  for (int delta = 16; delta > 0; delta /= 2) down += shuffle_down(down, delta);
  __syncwarp();
  const unsigned odd = ballot(int(x) % 2);
  const long second = shuffle(long(x), 1);
  if (threadIdx.x % 32) return;
  float* c = p.c + threadIdx.x / 32 * 4;
  c[0] = sum;
  c[1] = down;
  c[2] = __builtin_popcount(odd);
  c[3] = second;
}
BLOCK_KERNEL(dynamic, Vectors, 256) {
  DYNAMIC_SHARED(float, x);
  p.c[threadIdx.x] = x[threadIdx.x];  // nobody wrote it
  x[threadIdx.x + p.n] = 1;
}

BLOCK_KERNEL(diverges, Vectors, 256) {
  if (threadIdx.x < 40) __syncthreads();
  else p.c[0] = 0;
  __syncthreads();
}
BLOCK_KERNEL(half_a_warp, Vectors, 256) {
  if (threadIdx.x % 32 < 16) p.c[0] = shuffle(1.0f, 0);
}

struct Fragments { const unsigned* a; const unsigned* b; float* c; bool bf16; };
BLOCK_KERNEL(multiply, Fragments, 32) {
  // Row-major a [16, 16], column-major b [16, 8], both as pairs along k; c [16, 8].
  const int g = threadIdx.x / 4, t = threadIdx.x % 4;
  const unsigned a[4] = {p.a[g * 8 + t], p.a[(g + 8) * 8 + t], p.a[g * 8 + t + 4],
                         p.a[(g + 8) * 8 + t + 4]};
  const unsigned b[2] = {p.b[g * 8 + t], p.b[g * 8 + t + 4]};
  float* upper = p.c + g * 8 + t * 2;
  float* lower = upper + 64;
  float c[4] = {upper[0], upper[1], lower[0], lower[1]};
  if (p.bf16) mma_bf16(c, a, b);
  else mma_f16(c, a, b);
  upper[0] = c[0];
  upper[1] = c[1];
  lower[0] = c[2];
  lower[1] = c[3];
})";

struct Vectors {
  const float* a;
  const float* b;
  float* c;
  int n;
};

Function* kernel(const std::string& name, size_t shared_bytes = 0) {
  static Module* module = nullptr;
  if (!module) {
    void* image = nullptr;
    size_t bytes = 0;
    GOOD(tools().compile(program, "test", 9, 0, &image, &bytes));
    GOOD(driver().load(image, bytes, &module));
    tools().release_image(image);
  }
  Function* f = nullptr;
  GOOD(driver().function(module, name.c_str(), shared_bytes, &f));
  return f;
}

std::vector<float> counting(size_t n) {
  std::vector<float> values(n);
  for (size_t i = 0; i < n; ++i) values[i] = static_cast<float>(i % 101);
  return values;
}

bool all_nan(const std::vector<float>& values) {
  for (float v : values) {
    if (!std::isnan(v)) return false;
  }
  return true;
}

}  // namespace

TEST_CASE("emulator: what it says of itself") {
  CHECK(boundary().abi == kAbi);
  CHECK(std::string(boundary().name) == "emulator");
  Device d;
  CHECK(std::string(d.properties.name) == "emulated device");
  CHECK(d.properties.major == 9);
  CHECK(d.properties.multiprocessors == 4);
  CHECK(d.properties.shared_bytes == 227 * 1024);
  CHECK_FAILS(driver().open(1, &d.properties), "no device 1");
}

TEST_CASE("emulator: kernels without barriers, in every order") {
  for (const char* order : {"0", "1", "2", "12345"}) {
    CAPTURE(order);
    Device d("BRRR_EMULATOR_ORDER", order);
    const int n = 1000;
    const std::vector<float> a = counting(n), b(n, 0.5f);
    float* c = d.device(std::vector<float>(n, 0));
    GOOD(d.launch(kernel("add"), 4, 256, Vectors{d.device(a), d.device(b), c, n}));
    const std::vector<float> sums = d.host(c, n);
    for (int i = 0; i < n; ++i) REQUIRE(sums[i] == a[i] + 0.5f);

    float* places = d.device(std::vector<float>(30 * 24, -1));
    const unsigned grid[3] = {2, 3, 5}, block[3] = {4, 3, 2};
    const Vectors p{nullptr, nullptr, places, 0};
    GOOD(driver().launch(kernel("where"), grid, block, 0, &p, sizeof p, d.stream));
    const std::vector<float> found = d.host(places, 30 * 24);
    for (int i = 0; i < 30 * 24; ++i) REQUIRE(found[i] == i / 24 * 1000 + i % 24);
  }
}

TEST_CASE("emulator: blocks whose threads wait for each other, in every order") {
  for (const char* order : {"0", "1", "77"}) {
    CAPTURE(order);
    Device d("BRRR_EMULATOR_ORDER", order);
    const std::vector<float> a = counting(512);
    const float* in = d.device(a);
    float* c = d.device(std::vector<float>(256, 0));
    GOOD(d.launch(kernel("block_sum"), 2, 256, Vectors{in, nullptr, c, 0}));
    std::vector<float> want(2, 0);
    for (size_t i = 0; i < 512; ++i) want[i / 256] += a[i];
    CHECK(d.host(c, 2) == want);

    GOOD(d.launch(kernel("early"), 2, 100, Vectors{in, nullptr, c, 0}));
    CHECK(d.host(c, 40) == std::vector<float>(40, 5));

    GOOD(d.launch(kernel("warp_sums"), 1, 64, Vectors{in, nullptr, c, 0}));
    const std::vector<float> warps = d.host(c, 8);
    CHECK(warps == std::vector<float>{496, 496, 16, 1, 1520, 1520, 16, 33});
  }
}

TEST_CASE("emulator: shared memory begins as NaN and its end is guarded") {
  Device d;
  float* c = d.device(std::vector<float>(256, 0));
  Function* f = kernel("dynamic", 64 << 10);
  GOOD(d.launch(f, 2, 64, Vectors{nullptr, nullptr, c, 0}, 64 * sizeof(float)));
  CHECK(all_nan(d.host(c, 64)));
  CHECK_FAILS(d.launch(f, 2, 64, Vectors{nullptr, nullptr, c, 1}, 64 * sizeof(float)),
              "kernel dynamic, block (0, 0, 0): writes behind its 256 bytes of shared memory");
}

TEST_CASE("emulator: a race shows") {
  Device d;
  float* c = d.device(std::vector<float>(64, 0));
  GOOD(d.launch(kernel("race"), 1, 64, Vectors{d.device(counting(64)), nullptr, c, 0}));
  const std::vector<float> found = d.host(c, 64);
  CHECK(std::isnan(found[0]));
  CHECK(found[63] == 0);
}

TEST_CASE("emulator: threads that wait in vain are a failure, and the device goes on") {
  Device d;
  float* c = d.device(std::vector<float>(256, 0));
  const Vectors p{nullptr, nullptr, c, 0};
  CHECK_FAILS(
      d.launch(kernel("diverges"), 3, 64, p),
      "kernel diverges, block (0, 0, 0): thread (0, 0, 0) waits at __syncthreads() in line");
  CHECK_FAILS(d.launch(kernel("diverges"), 3, 64, p), "but thread (40, 0, 0) waits at");
  CHECK_FAILS(d.launch(kernel("half_a_warp"), 1, 64, p), "thread (0, 0, 0) waits for its warp");
  CHECK_FAILS(d.launch(kernel("half_a_warp"), 1, 64, p), "but thread (16, 0, 0) has returned");
  CHECK_FAILS(d.launch(kernel("half_a_warp"), 1, 10, p), "which has only 10 lanes");
  CHECK_FAILS(d.launch(kernel("barrier_in_loop"), 1, 64, p), "need BLOCK_KERNEL");
  GOOD(d.launch(kernel("early"), 1, 100, p));
  CHECK(d.host(c, 40) == std::vector<float>(40, 5));
}

TEST_CASE("emulator: mma equals a plain product") {
  struct Fragments {
    const unsigned* a;
    const unsigned* b;
    float* c;
    bool bf16;
  };
  // Small integers, which every format holds: 2^e (1 + m), written by hand for both.
  const auto encode = [](int x, bool bf16) {
    const unsigned sign = x < 0 ? 0x8000 : 0, y = static_cast<unsigned>(std::abs(x));
    if (y == 0) return sign;
    const int e = std::ilogb(y), mantissa_bits = bf16 ? 7 : 10;
    const unsigned mantissa = (y << mantissa_bits >> e) & ((1u << mantissa_bits) - 1);
    return sign | static_cast<unsigned>(e + (bf16 ? 127 : 15)) << mantissa_bits | mantissa;
  };
  Device d;
  for (bool bf16 : {true, false}) {
    CAPTURE(bf16);
    std::vector<int> a(256), b(128);
    for (int i = 0; i < 256; ++i) a[i] = i * 7 % 31 - 15;
    for (int i = 0; i < 128; ++i) b[i] = i * 5 % 23 - 11;
    std::vector<unsigned> a_pairs(128), b_pairs(64);
    const auto pair = [&](int lo, int hi) { return encode(lo, bf16) | encode(hi, bf16) << 16; };
    for (int i = 0; i < 128; ++i) a_pairs[i] = pair(a[2 * i], a[2 * i + 1]);
    for (int i = 0; i < 64; ++i) b_pairs[i] = pair(b[2 * i], b[2 * i + 1]);
    float* c = d.device(std::vector<float>(128, 0.25f));
    GOOD(d.launch(kernel("multiply"), 1, 32,
                  Fragments{d.device(a_pairs), d.device(b_pairs), c, bf16}));
    const std::vector<float> found = d.host(c, 128);
    for (int i = 0; i < 16; ++i) {
      for (int j = 0; j < 8; ++j) {
        int want = 0;
        for (int k = 0; k < 16; ++k) want += a[i * 16 + k] * b[j * 16 + k];
        CHECK(found[i * 8 + j] == static_cast<float>(want) + 0.25f);
      }
    }
  }
}

TEST_CASE("emulator: memory runs out, begins as NaN and comes back") {
  Device d("BRRR_EMULATOR_MEMORY", "1000000");
  size_t before = 0, after = 0, total = 0;
  GOOD(driver().memory(&before, &total));
  CHECK(total == 1000000);
  void *p = nullptr, *q = nullptr;
  GOOD(driver().allocate(&p, 600000));
  GOOD(driver().allocate(&q, 600000));
  CHECK(p != nullptr);
  CHECK(q == nullptr);
  CHECK(reinterpret_cast<uintptr_t>(p) % 256 == 0);
  CHECK(all_nan(d.host(static_cast<float*>(p), 150000)));
  GOOD(driver().release(p));
  CHECK_FAILS(driver().release(p), "released before");
  GOOD(driver().memory(&after, &total));
  CHECK(before == after);
}

TEST_CASE("emulator: writes outside an allocation are a failure") {
  Device d;
  float* inside = d.device(std::vector<float>(100, 1));
  const std::vector<float> zeros(300, 0);
  const float* a = d.device(zeros);
  // 104 elements into 100.
  GOOD(d.launch(kernel("add"), 1, 256, Vectors{a, a, inside, 104}));
  CHECK_FAILS(driver().synchronize(d.stream),
              "bytes 400 to 415 of the device allocation of 400 bytes");
  GOOD(driver().synchronize(d.stream));
  GOOD(d.launch(kernel("add"), 1, 256, Vectors{a, a, inside - 2, 1}));
  void* p = inside;
  d.allocated.erase(d.allocated.begin());
  CHECK_FAILS(driver().release(p), "bytes -8 to -5 of the device allocation of 400 bytes");
  CHECK_FAILS(driver().release(p), "released before");
}

TEST_CASE("emulator: wrong arguments") {
  Device d;
  float* c = d.device(std::vector<float>(64, 0));
  std::vector<float> h(64);
  CHECK_FAILS(driver().copy(c, h.data(), 65 * 4, Way::ToDevice, d.stream),
              "not within device memory");
  CHECK_FAILS(driver().copy(h.data(), h.data(), 4, Way::ToHost, d.stream),
              "not within device memory");
  CHECK_FAILS(driver().copy(c, c, 4, Way::ToDevice, d.stream), "not host memory");
  CHECK_FAILS(driver().copy(c, c, 4, Way::ToHost, d.stream), "not host memory");
  CHECK_FAILS(driver().fill(h.data(), 0, 4, d.stream), "not within device memory");
  Stream* no_stream = reinterpret_cast<Stream*>(&h);
  Event* no_event = reinterpret_cast<Event*>(&h);
  CHECK_FAILS(driver().synchronize(no_stream), "no stream");
  CHECK_FAILS(driver().record(no_event, d.stream), "no event");
  CHECK_FAILS(driver().release_pinned(c), "no pinned memory");
  Function* add = kernel("add");
  const Vectors p{c, c, c, 64};
  CHECK_FAILS(d.launch(add, 0, 64, p), "grid (0, 1, 1)");
  CHECK_FAILS(d.launch(add, 1, 257, p), "compiled for 256 at most");
  CHECK_FAILS(d.launch(add, 1, 64, p, 64 << 10), "shared memory");
  CHECK_FAILS(d.launch(add, 1, 64, c), "8 bytes of arguments; it takes 32");
  Function* none = nullptr;
  CHECK_FAILS(driver().function(nullptr, "add", 0, &none), "no module");

  void* image = nullptr;
  size_t bytes = 0;
  const Failure log =
      tools().compile("int x;\nKERNEL(k, int, 32) { y = 1; }", "broken", 9, 0, &image, &bytes);
  CHECK_FAILS(log, "broken:2:");
  Module* module = nullptr;
  CHECK_FAILS(driver().load("nonsense", 8, &module), "load: ");
}

TEST_CASE("emulator: a lazy device shows what nobody waited for") {
  Device d("BRRR_EMULATOR_LAZY", "1");
  const size_t n = 64, bytes = n * sizeof(float);
  void *pinned_in = nullptr, *pinned_out = nullptr;
  GOOD(driver().allocate_pinned(&pinned_in, bytes));
  GOOD(driver().allocate_pinned(&pinned_out, bytes));
  float *in = static_cast<float*>(pinned_in), *out = static_cast<float*>(pinned_out);
  std::vector<float> pageable(n, 1);
  float* a = d.device(pageable);
  float* b = d.device(pageable);
  float* c = d.device(pageable);
  std::fill(in, in + n, 2.0f);
  GOOD(driver().copy(b, in, bytes, Way::ToDevice, d.stream));
  GOOD(d.launch(kernel("add"), 1, 64, Vectors{a, b, c, 64}));
  GOOD(driver().copy(out, c, bytes, Way::ToHost, d.stream));
  Event* e = nullptr;
  GOOD(driver().make_event(&e));
  bool yes = false;
  GOOD(driver().finished(e, &yes));
  CHECK(yes);  // never recorded
  GOOD(driver().record(e, d.stream));
  CHECK(std::isnan(out[0]));  // read too early
  pageable.assign(n, 9);      // staged: may change
  in[0] = 5;                  // pinned: changed too early

  SUBCASE("the stream") {
    GOOD(driver().synchronize(d.stream));
  }
  SUBCASE("an event") {
    GOOD(driver().wait(e));
  }
  SUBCASE("polling") {
    GOOD(driver().finished(e, &yes));
    CHECK(!yes);
    GOOD(driver().finished(e, &yes));
    CHECK(yes);
  }
  SUBCASE("another stream that waits for the event") {
    Stream* other = nullptr;
    GOOD(driver().make_stream(&other));
    GOOD(driver().wait_on(other, e));
    CHECK(std::isnan(out[0]));
    GOOD(driver().release_event(e));
    e = nullptr;
    GOOD(driver().synchronize(other));
  }
  SUBCASE("a copy to pageable memory") {
    GOOD(driver().copy(pageable.data(), c, bytes, Way::ToHost, d.stream));
    CHECK(pageable[1] == 3);
  }
  CHECK(out[0] == 6);
  CHECK(out[1] == 3);
  if (e) GOOD(driver().release_event(e));
  GOOD(driver().release_pinned(in));
  GOOD(driver().release_pinned(out));
}

TEST_CASE("emulator: a lazy failure is told where somebody waits") {
  Device d("BRRR_EMULATOR_LAZY", "1");
  float* c = d.device(std::vector<float>(64, 1));
  GOOD(d.launch(kernel("half_a_warp"), 1, 64, Vectors{nullptr, nullptr, c, 0}));
  CHECK_FAILS(driver().synchronize(d.stream), "kernel half_a_warp");
  CHECK(d.host(c, 1)[0] == 1);
}
