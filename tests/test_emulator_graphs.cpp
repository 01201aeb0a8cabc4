// Captures and graphs of the emulated device.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "tests/emulator/probe.h"
#include "tests/emulator_device.h"

using namespace brrr::test;
using brrr::emulator::Counters;

namespace {

const char* const program = R"(
struct Vectors { const float* a; const float* b; float* c; int n; };
KERNEL(add, Vectors, 256) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < p.n) p.c[i] = p.a[i] + p.b[i];
}
BLOCK_KERNEL(half_a_warp, Vectors, 256) {
  if (threadIdx.x % 32 < 16) p.c[0] = brrr::vx::shuffle(1.0f, 0);
})";

Counters counters() { return exported<Counters()>("brrr_emulator_counters")(); }
void fail_at(int step) { exported<void(int)>("brrr_emulator_fail")(step); }

constexpr int n = 64;
constexpr size_t bytes = n * sizeof(float);

// One of each operation that a capture records: x from pinned memory, y = 0, y = x + x, z = y,
// w = y as a matrix times itself, z to pinned memory.
struct Chain {
  explicit Chain(Device& device) : d(device) {
    for (float** p : {&x, &y, &z, &w}) *p = d.device(std::vector<float>(n, -1));
    for (float** p : {&in, &out}) {
      void* pinned = nullptr;
      GOOD(driver().allocate_pinned(&pinned, bytes));
      *p = static_cast<float*>(pinned);
    }
    GemmShape shape{};
    shape.m = shape.n = shape.k = shape.lda = shape.ldb = shape.ldc = 8;
    shape.batch = 1;
    GOOD(driver().choose(&shape, 0, &product));
  }
  Chain(const Chain&) = delete;

  /// Queues all of it; stops at the first failure.
  Failure queue() {
    Stream* s = d.stream;
    Failure f = driver().copy(x, in, bytes, Way::ToDevice, s);
    if (!f) f = driver().fill(y, 0, bytes, s);
    if (!f) f = d.launch(add, 1, n, Vectors{x, x, y, n});
    if (!f) f = driver().copy(z, y, bytes, Way::OnDevice, s);
    if (!f) f = driver().multiply(product, y, y, w, nullptr, 0, s);
    if (!f) f = driver().copy(out, z, bytes, Way::ToHost, s);
    return f;
  }
  static constexpr int nodes = 6;

  Graph* capture() {
    Graph* g = nullptr;
    size_t captured = 0;
    GOOD(driver().begin_capture(d.stream));
    GOOD(queue());
    GOOD(driver().end_capture(d.stream, &g, &captured));
    CHECK(captured == nodes);
    upload(g);
    return g;
  }
  void upload(Graph* g) {
    bool done = false;
    GOOD(driver().upload(g, d.stream, &done, &taken));
    CHECK(done);
  }
  void set(float value) { std::fill(in, in + n, value); }
  /// Checks that all of it has run on `value`.
  void check(float value) {
    GOOD(driver().synchronize(d.stream));
    CHECK(std::vector<float>(out, out + n) == std::vector<float>(n, 2 * value));
    CHECK(d.host(y, n) == std::vector<float>(n, 2 * value));
    CHECK(d.host(w, n) == std::vector<float>(n, 8 * 4 * value * value));
  }

  Device& d;
  Function* add = kernel(program, "add");
  float *x, *y, *z, *w, *in, *out;
  Gemm* product = nullptr;
  size_t taken = 0;  ///< Device memory, by the graph uploaded last.
};

}  // namespace

TEST_CASE("emulator graphs: work is recorded in order, and each launch runs it on current data") {
  for (const char* lazy : {"0", "1"}) {
    CAPTURE(lazy);
    Device d("BRRR_EMULATOR_LAZY", lazy);
    Chain chain(d);
    chain.set(1);
    Graph* g = chain.capture();
    CHECK(d.host(chain.x, n) == std::vector<float>(n, -1));  // nothing has run
    CHECK(d.host(chain.y, n) == std::vector<float>(n, -1));
    CHECK(chain.taken > 0);
    chain.upload(g);  // again does no harm
    CHECK(d.host(chain.y, n) == std::vector<float>(n, -1));
    const Counters before = counters();
    for (float value : {2.0f, 3.0f}) {
      chain.set(value);
      GOOD(driver().launch_graph(g, d.stream));
      chain.check(value);
    }
    CHECK(counters().graph_launches == before.graph_launches + 2);
    CHECK(counters().kernels == before.kernels);
    CHECK(counters().allocations == before.allocations);
    CHECK(counters().graphs == before.graphs);
    // The same stream runs single calls again, and a pending launch outlives its graph.
    chain.set(4);
    GOOD(chain.queue());
    chain.check(4);
    CHECK(counters().kernels == before.kernels + 2);
    chain.set(5);
    GOOD(driver().launch_graph(g, d.stream));
    GOOD(driver().release_graph(g));
    chain.check(5);
    CHECK(counters().graphs == before.graphs - 1);
    CHECK_FAILS(driver().launch_graph(g, d.stream), "not a valid graph");
    CHECK_FAILS(driver().release_graph(g), "not a valid graph");
  }
}

TEST_CASE("emulator graphs: a launch on another stream runs when it is waited for") {
  Device d("BRRR_EMULATOR_LAZY", "1");
  Chain chain(d);
  Graph* g = chain.capture();
  Stream* compute = nullptr;
  Event* e = nullptr;
  GOOD(driver().make_stream(&compute));
  GOOD(driver().make_event(&e));
  chain.set(2);
  GOOD(driver().synchronize(d.stream));
  CHECK(counters().waiting == 0);
  GOOD(driver().launch_graph(g, compute));
  CHECK(chain.out[0] != 4);  // as late as possible
  CHECK(counters().waiting == 1);
  GOOD(driver().record(e, compute));
  GOOD(driver().wait(e));
  chain.check(2);
  GOOD(driver().release_graph(g));
}

TEST_CASE("emulator graphs: all other calls of the capturing thread fail and spoil the capture") {
  Device d;
  Chain chain(d);
  chain.set(3);
  Stream* other = nullptr;
  Event* e = nullptr;
  GOOD(driver().make_stream(&other));
  GOOD(driver().make_event(&e));
  Graph* whole = chain.capture();
  std::vector<float> pageable(n);
  Properties properties;
  void* p = nullptr;
  size_t size = 0;
  bool done = false;
  Module* m = nullptr;
  Gemm* plan = nullptr;
  const GemmShape shape{};
  const Driver& v = driver();
  struct Forbidden {
    const char* said;
    std::function<Failure()> call;
  };
  const Forbidden calls[] = {
      {"open: not while", [&] { return v.open(&properties); }},
      {"allocate: not while", [&] { return v.allocate(&p, 4); }},
      {"allocate_pinned: not while", [&] { return v.allocate_pinned(&p, 4); }},
      {"release: not while", [&] { return v.release(chain.x); }},
      {"memory: not while", [&] { return v.memory(&size, &size); }},
      {"make_stream: not while", [&] { return v.make_stream(&other); }},
      {"synchronize: not while", [&] { return v.synchronize(d.stream); }},
      {"synchronize: not while", [&] { return v.synchronize(other); }},
      {"not recorded in this capture", [&] { return v.await(other, e); }},
      {"wait: not while", [&] { return v.wait(e); }},
      {"load: not while", [&] { return v.load("", 0, &m); }},
      {"function: not while", [&] { return v.function(nullptr, "add", 0, nullptr); }},
      {"choose: not while", [&] { return driver().choose(&shape, 0, &plan); }},
      {"arena: not while", [&] { return v.arena(4, &p, &done); }},
      {"begin_capture: not while", [&] { return v.begin_capture(d.stream); }},
      {"launch_graph: not while", [&] { return v.launch_graph(whole, d.stream); }},
      {"no copy from pageable",
       [&] { return v.copy(chain.x, pageable.data(), bytes, Way::ToDevice, d.stream); }},
      {"no copy to pageable",
       [&] { return v.copy(pageable.data(), chain.x, bytes, Way::ToHost, d.stream); }},
      {"captures another stream", [&] { return v.fill(chain.x, 0, bytes, other); }},
      {"it takes 32", [&] { return d.launch(chain.add, 1, n, 1); }},
      {"not within device memory", [&] { return v.fill(chain.in, 0, bytes, d.stream); }},
  };
  for (const auto& [error, call] : calls) {
    const std::string said = error;
    CAPTURE(said);
    Graph* g = whole;
    size_t nodes = 0;
    GOOD(v.begin_capture(d.stream));
    GOOD(v.fill(chain.x, 0, bytes, d.stream));
    const unsigned long refused = counters().refused;
    CHECK_FAILS(call(), said);
    const bool counted = std::string(said).find("not while") != std::string::npos;
    CHECK(counters().refused - refused == counted);
    CHECK(v.wait(e));  // a later failure does not hide the first
    GOOD(v.fill(chain.x, 0, bytes, d.stream));
    const std::string spoilt = words(v.end_capture(d.stream, &g, &nodes));
    CHECK_MESSAGE(spoilt.find("the capture was invalidated: ") == 0, spoilt);
    CHECK_MESSAGE(spoilt.find(said) != std::string::npos, spoilt);
    CHECK(g == nullptr);
    GOOD(chain.queue());
    chain.check(3);
  }
  Graph* g = nullptr;
  CHECK_FAILS(v.end_capture(d.stream, &g, &size), "is not captured");
  GOOD(v.launch_graph(whole, d.stream));
  chain.check(3);
  GOOD(v.release_graph(whole));
}

TEST_CASE("emulator graphs: a failure at any step leaves the stream usable and leaks nothing") {
  Device d;
  Chain chain(d);
  chain.set(3);
  const size_t free = free_bytes();
  const unsigned long graphs = counters().graphs;
  const int steps = 1 + Chain::nodes + 3;  // begin; end, upload, launch
  for (int step = 1; step <= steps + 1; ++step) {
    CAPTURE(step);
    fail_at(step);
    Graph* g = nullptr;
    size_t nodes = 0;
    std::string failure = words(driver().begin_capture(d.stream));
    if (step > 1) {
      const Failure queued = chain.queue();
      CHECK((queued != nullptr) == (step <= 1 + Chain::nodes));
      failure = words(driver().end_capture(d.stream, &g, &nodes));
      CHECK((g == nullptr) == (failure != "no failure"));
    }
    if (g) {
      bool done = false;
      failure = words(driver().upload(g, d.stream, &done, &chain.taken));
      CHECK(done == (failure == "no failure"));
      if (failure == "no failure") failure = words(driver().launch_graph(g, d.stream));
      GOOD(driver().release_graph(g));
    }
    if (step > steps) {
      CHECK(failure == "no failure");
      fail_at(0);
    } else {
      CHECK_MESSAGE(failure.find("fails because a test asked for it") != std::string::npos,
                    failure);
    }
    GOOD(chain.queue());
    chain.check(3);
    CHECK(counters().graphs == graphs);
    CHECK(free_bytes() == free);
  }
}

TEST_CASE("emulator graphs: a graph takes memory from its upload on, which may be retried") {
  Device d("BRRR_EMULATOR_MEMORY", "1000000");
  Chain chain(d);
  Graph* g = chain.capture();
  const size_t with = free_bytes();
  size_t taken = chain.taken, nodes = 0;
  GOOD(driver().release_graph(g));
  CHECK(free_bytes() == with + taken);
  GOOD(driver().begin_capture(d.stream));
  GOOD(chain.queue());
  GOOD(driver().end_capture(d.stream, &g, &nodes));
  CHECK(free_bytes() == with + taken);
  void* all = nullptr;
  bool done = true;
  GOOD(driver().allocate(&all, free_bytes() - 1));
  GOOD(driver().upload(g, d.stream, &done, &taken));
  CHECK(!done);
  GOOD(driver().release(all));
  chain.upload(g);
  CHECK(free_bytes() == with);
  chain.set(2);
  GOOD(driver().launch_graph(g, d.stream));
  chain.check(2);
  GOOD(driver().release_graph(g));
}

TEST_CASE("emulator graphs: a failure while a graph runs is the launch's failure") {
  Device d;
  Chain chain(d);
  Function* bad = kernel(program, "half_a_warp");
  Graph* g = nullptr;
  size_t nodes = 0;
  GOOD(driver().begin_capture(d.stream));
  GOOD(d.launch(bad, 1, 64, Vectors{nullptr, nullptr, chain.y, 0}));
  GOOD(driver().end_capture(d.stream, &g, &nodes));
  CHECK_FAILS(driver().launch_graph(g, d.stream), "was not uploaded");
  chain.upload(g);
  CHECK_FAILS(driver().launch_graph(g, d.stream), "waits for its warp");
  GOOD(driver().release_graph(g));
  // Memory that a graph uses has been freed.
  void* p = nullptr;
  GOOD(driver().allocate(&p, bytes));
  GOOD(driver().begin_capture(d.stream));
  GOOD(driver().fill(p, 0, bytes, d.stream));
  GOOD(driver().end_capture(d.stream, &g, &nodes));
  chain.upload(g);
  GOOD(driver().release(p));
  CHECK_FAILS(driver().launch_graph(g, d.stream), "not within device memory");
  GOOD(driver().release_graph(g));
  GOOD(chain.queue());
}

TEST_CASE("emulator graphs: while one thread captures another allocates, copies and launches") {
  Device d;
  Chain chain(d);
  chain.set(2);
  std::atomic<bool> ready = false, stop = false;
  std::atomic<int> wrong = 0, rounds = 0;
  std::thread other([&] {
    Stream* s = nullptr;
    void* pinned = nullptr;
    if (driver().make_stream(&s) || driver().allocate_pinned(&pinned, bytes)) ++wrong;
    while (!stop) {
      void* p = nullptr;
      std::vector<float> values(n, 1), back(n);
      bool good = !driver().allocate(&p, bytes);
      float* x = static_cast<float*>(p);
      const Vectors v{x, x, x, n};
      const unsigned grid[3] = {1, 1, 1}, block[3] = {n, 1, 1};
      good = good && !driver().copy(x, values.data(), bytes, Way::ToDevice, s);
      good = good && !driver().launch(chain.add, grid, block, 0, &v, sizeof v, s);
      good = good && !driver().copy(pinned, x, bytes, Way::ToHost, s);
      good = good && !driver().synchronize(s) && static_cast<float*>(pinned)[n - 1] == 2;
      good = good && !driver().release(p);
      if (!good) ++wrong;
      ++rounds;
      ready = true;
    }
  });
  while (!ready) std::this_thread::yield();
  for (int i = 0; i < 100; ++i) {
    const int before = rounds;
    Graph* g = nullptr;
    size_t nodes = 0;
    GOOD(driver().begin_capture(d.stream));
    while (rounds < before + 2) std::this_thread::yield();  // a whole round within the capture
    GOOD(chain.queue());
    GOOD(driver().end_capture(d.stream, &g, &nodes));
    CHECK(nodes == Chain::nodes);
    chain.upload(g);
    GOOD(driver().launch_graph(g, d.stream));
    GOOD(driver().release_graph(g));
  }
  stop = true;
  other.join();
  CHECK(wrong == 0);
  chain.check(2);
}

TEST_CASE("emulator graphs: another thread's use of the captured stream fails and spoils it") {
  Device d;
  Chain chain(d);
  Graph* g = nullptr;
  size_t nodes = 0;
  GOOD(driver().begin_capture(d.stream));
  std::thread([&] {
    CHECK_FAILS(driver().fill(chain.x, 0, bytes, d.stream), "captured by another thread");
    CHECK_FAILS(driver().synchronize(d.stream), "captured by another thread");
    CHECK_FAILS(driver().end_capture(d.stream, &g, &nodes), "captured by another thread");
  }).join();
  CHECK_FAILS(driver().end_capture(d.stream, &g, &nodes), "another thread used the stream");
  GOOD(chain.queue());
}
