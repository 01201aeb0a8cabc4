// Captures, graphs and the growing arena of the module brrr_cuda, on a GPU.

#include <doctest/doctest.h>

#ifdef BRRR_CUDA_MODULE

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/cuda_module.h"

using namespace brrr::test::cuda;

namespace {

constexpr int n = 1000;
constexpr size_t bytes = n * sizeof(float);

// Work to capture: y = x from pinned memory, z = 0, z = 2 y, w = z, w to pinned memory, a product.
struct Chain : Device {
  float *in = nullptr, *out = nullptr;
  void *y = allocate(bytes), *z = allocate(bytes), *w = allocate(bytes);
  void* workspace = allocate(workspace_bytes);
  Module* module = nullptr;
  Function* doubling_kernel = nullptr;
  Gemm* product = nullptr;
  size_t taken = 0;  // Device memory, by the graph uploaded last.
  static constexpr size_t nodes = 6, workspace_bytes = 4 << 20;

  explicit Chain(const Properties& properties) {
    for (float** p : {&in, &out}) {
      void* pinned = nullptr;
      REQUIRE_DONE(driver.allocate_pinned(&pinned, bytes));
      *p = static_cast<float*>(pinned);
    }
    const Compiled code = compile(doubling, properties.major, properties.minor);
    REQUIRE_MESSAGE(code.failure.empty(), code.failure);
    REQUIRE_DONE(driver.load(code.image.data(), code.image.size(), &module));
    REQUIRE_DONE(driver.function(module, "doubling", 0, &doubling_kernel));
    GemmShape shape{};
    shape.m = shape.n = shape.k = shape.lda = shape.ldb = shape.ldc = 16;
    shape.batch = 1;
    REQUIRE_DONE(boundary().choose(&shape, workspace_bytes, &product));
    run(1);  // a library's first call may do what a capture forbids
  }
  ~Chain() {
    CHECK(driver.synchronize(stream) == nullptr);
    CHECK(driver.unload(module) == nullptr);
  }

  // z = 2 y, with this number of blocks.
  Failure launch(unsigned blocks) {
    const struct {
      const void* x;
      void* y;
      int n;
    } params{y, z, n};
    const unsigned grid[3] = {blocks, 1, 1}, block[3] = {128, 1, 1};
    return driver.launch(doubling_kernel, grid, block, 0, &params, sizeof params, stream);
  }
  Failure queue() {
    Failure f = driver.copy(y, in, bytes, Way::ToDevice, stream);
    if (!f) f = driver.fill(z, 0, bytes, stream);
    if (!f) f = launch((n + 127) / 128);
    if (!f) f = driver.copy(w, z, bytes, Way::OnDevice, stream);
    if (!f) f = driver.copy(out, w, bytes, Way::ToHost, stream);
    if (!f) {
      f = boundary().multiply(product, y, z, w, workspace, workspace_bytes, stream);
    }
    return f;
  }
  Graph* capture() {
    Graph* g = nullptr;
    size_t captured = 0;
    REQUIRE_DONE(driver.begin_capture(stream));
    REQUIRE_DONE(queue());
    REQUIRE_DONE(driver.end_capture(stream, &g, &captured));
    CHECK(captured >= nodes);  // a product may be several
    CHECK(driver.launch_graph(g, stream));
    upload(g);
    return g;
  }
  void upload(Graph* g) {
    bool done = false;
    REQUIRE_DONE(driver.upload(g, stream, &done, &taken));
    CHECK(done);
  }
  void set(float value) { std::fill(in, in + n, value); }
  void check(float value) {
    REQUIRE_DONE(driver.synchronize(stream));
    CHECK(std::vector<float>(out, out + n) == std::vector<float>(n, 2 * value));
    float first = 0;
    REQUIRE_DONE(driver.copy(&first, w, sizeof first, Way::ToHost, stream));
    REQUIRE_DONE(driver.synchronize(stream));
    CHECK(first == 16 * 2 * value * value);
  }
  void run(float value) {
    set(value);
    REQUIRE_DONE(queue());
    check(value);
  }
};

// Null where there is no GPU.
std::unique_ptr<Chain> make_chain() {
  Properties properties;
  std::string words;
  if (open_device(properties, words)) return std::make_unique<Chain>(properties);
  MESSAGE("skipped: " << words);
  return nullptr;
}

}  // namespace

TEST_CASE("cuda module: on a GPU, a graph runs the captured work on the data of its launch") {
  const auto chain = make_chain();
  if (!chain) return;
  const Driver& driver = chain->driver;
  chain->run(1);
  chain->set(2);
  Graph* g = chain->capture();
  chain->check(1);   // nothing has run
  chain->upload(g);  // again does no harm
  chain->check(1);
  MESSAGE("device memory that a graph of " << Chain::nodes << " nodes took: " << chain->taken);
  for (float value : {3.0f, 4.0f}) {
    chain->set(value);
    REQUIRE_DONE(driver.launch_graph(g, chain->stream));
    chain->check(value);
  }
  chain->set(5);
  REQUIRE_DONE(driver.launch_graph(g, chain->stream));
  REQUIRE_DONE(driver.release_graph(g));  // the launch still runs
  chain->check(5);
  chain->run(6);
}

TEST_CASE("cuda module: on a GPU, a forbidden call spoils the capture, not the stream") {
  const auto chain = make_chain();
  if (!chain) return;
  const Driver& v = chain->driver;
  Graph* whole = chain->capture();
  Stream* other = nullptr;
  Event* e = nullptr;
  REQUIRE_DONE(v.make_stream(&other));
  REQUIRE_DONE(v.make_event(&e));
  std::vector<float> pageable(n);
  void* p = nullptr;
  Module* module = nullptr;
  bool done = false;
  size_t size = 0;
  Stream* const s = chain->stream;
  const struct {
    const char* said;
    std::function<Failure()> call;
  } calls[] = {
      {"allocate: not while", [&] { return v.allocate(&p, 4); }},
      {"release: not while", [&] { return v.release(chain->y); }},
      {"synchronize: not while", [&] { return v.synchronize(s); }},
      {"not recorded in this capture", [&] { return v.await(other, e); }},
      {"wait: not while", [&] { return v.wait(e); }},
      {"load: not while", [&] { return v.load("", 0, &module); }},
      {"arena: not while", [&] { return v.arena(4, &p, &done); }},
      {"begin_capture: not while", [&] { return v.begin_capture(s); }},
      {"launch_graph: not while", [&] { return v.launch_graph(whole, s); }},
      {"pageable", [&] { return v.copy(chain->y, pageable.data(), bytes, Way::ToDevice, s); }},
      {"pageable", [&] { return v.copy(pageable.data(), chain->y, bytes, Way::ToHost, s); }},
      {"captures another stream", [&] { return v.fill(chain->y, 0, bytes, other); }},
      {"cuLaunchKernel", [&] { return chain->launch(0); }},
  };
  for (const auto& [error, call] : calls) {
    const std::string said = error;
    CAPTURE(said);
    Graph* g = whole;
    REQUIRE_DONE(v.begin_capture(s));
    const Failure failure = call();
    REQUIRE(failure);
    CHECK_MESSAGE(contains(failure, said), std::string(failure));
    CHECK(v.wait(e));  // a later failure does not hide the first
    const Failure spoilt = v.end_capture(s, &g, &size);
    REQUIRE(spoilt);
    CHECK_MESSAGE(contains(spoilt, "the capture was invalidated: "), std::string(spoilt));
    CHECK_MESSAGE(contains(spoilt, said), std::string(spoilt));
    CHECK(g == nullptr);
    chain->run(2);
  }
  REQUIRE_DONE(v.release_graph(whole));
  CHECK(v.end_capture(s, &whole, &size));
}

TEST_CASE("cuda module: on a GPU, 100 captures while another thread allocates and copies") {
  const auto chain = make_chain();
  if (!chain) return;
  const Driver& v = chain->driver;
  std::atomic<bool> stop = false;
  std::atomic<int> wrong = 0, rounds = 0;
  std::thread other([&] {
    Stream* s = nullptr;
    void* pinned = nullptr;
    if (v.make_stream(&s) || v.allocate_pinned(&pinned, bytes)) ++wrong;
    for (; !stop; ++rounds) {
      void* p = nullptr;
      bool good = !v.allocate(&p, bytes);
      good = good && !v.copy(p, pinned, bytes, Way::ToDevice, s) && !v.synchronize(s);
      good = good && !v.release(p);
      if (!good) ++wrong;
    }
  });
  for (int i = 0; i < 100; ++i) {
    const int before = rounds;
    Graph* g = nullptr;
    size_t captured = 0;
    REQUIRE_DONE(v.begin_capture(chain->stream));
    while (rounds < before + 2) std::this_thread::yield();  // a whole round within the capture
    REQUIRE_DONE(chain->queue());
    REQUIRE_DONE(v.end_capture(chain->stream, &g, &captured));
    chain->upload(g);
    chain->set(float(i));
    REQUIRE_DONE(v.launch_graph(g, chain->stream));
    chain->check(float(i));
    REQUIRE_DONE(v.release_graph(g));
  }
  stop = true;
  other.join();
  CHECK(wrong == 0);
}

TEST_CASE("cuda module: on a GPU, the arena grows in place") {
  Properties properties;
  std::string words;
  if (!open_device(properties, words)) {
    MESSAGE("skipped: " << words);
    return;
  }
  Device device;
  const Driver& v = device.driver;
  size_t free = 0, total = 0;
  REQUIRE_DONE(v.memory(&free, &total));
  void *p = nullptr, *again = nullptr;
  bool done = false;
  const std::string some(100, 'a'), more(size_t{50} << 20, 'b');
  REQUIRE_DONE(v.arena(some.size(), &p, &done));
  CHECK(done);
  REQUIRE_DONE(v.copy(p, some.data(), some.size(), Way::ToDevice, device.stream));
  REQUIRE_DONE(v.synchronize(device.stream));
  REQUIRE_DONE(v.arena(some.size() + more.size(), &again, &done));
  CHECK(done);
  CHECK(again == p);
  char* behind = static_cast<char*>(p) + some.size();
  REQUIRE_DONE(v.copy(behind, more.data(), more.size(), Way::ToDevice, device.stream));
  CHECK(device.get(p, some.size() + more.size()) == some + more);
  for (size_t too_many : {total, 2 * total}) {
    REQUIRE_DONE(v.arena(too_many, &p, &done));
    CHECK(!done);
  }
  CHECK(device.get(p, some.size()) == some);  // the old contents stay
}

#else

TEST_CASE("cuda module graphs") { MESSAGE("skipped: the module brrr_cuda was not built"); }

#endif
