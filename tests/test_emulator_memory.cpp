// Memory, streams, arguments and programs of the emulated device.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <string>
#include <thread>
#include <vector>

#include "tests/emulator_device.h"

using namespace brrr::test;

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

}  // namespace

TEST_CASE("emulator: many threads, each with its own stream") {
  Device d;
  Function* add = kernel(program, "add");
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      Stream* s = nullptr;
      void* p = nullptr;
      bool good = !driver().make_stream(&s) && !driver().allocate(&p, 1024);
      float* x = static_cast<float*>(p);
      const Vectors v{x, x, x, 256};
      const unsigned grid[3] = {1, 1, 1}, block[3] = {256, 1, 1};
      std::vector<float> values(256, static_cast<float>(t));
      good = good && !driver().copy(x, values.data(), 1024, Way::ToDevice, s);
      for (int i = 0; i < 10; ++i)
        good = good && !driver().launch(add, grid, block, 0, &v, sizeof v, s);
      good = good && !driver().copy(values.data(), x, 1024, Way::ToHost, s);
      for (float value : values) good = good && value == static_cast<float>(t * 1024);
      good = good && words(driver().release(&s)).find("no device memory") != std::string::npos;
      good = good && !driver().release(p);
      if (!good) ++wrong;
    });
  }
  for (std::thread& t : threads) t.join();
  CHECK(wrong == 0);
}

TEST_CASE("emulator: programs are unloaded, one image is several programs") {
  Device d;
  const char* image = nullptr;
  size_t bytes = 0;
  GOOD(driver().compile(
      "static int calls;\nstruct P { float* x; };\nKERNEL(one, P, 32) { *p.x = ++calls; }  // end",
      "calls", 9, 0, &image, &bytes));
  float* c = d.device(std::vector<float>(1));
  for (int i = 0; i < 2; ++i) {
    Module* m[2] = {};
    Function* f[2] = {};
    for (int k = 0; k < 2; ++k) {
      GOOD(driver().load(image, bytes, &m[k]));
      GOOD(driver().function(m[k], "one", 0, &f[k]));
      CHECK_FAILS(driver().function(m[k], "two", 0, &f[k]), "no kernel two");
      GOOD(d.launch(f[k], 1, 1, c));
      CHECK(d.host(c, 1)[0] == 1);
    }
    GOOD(d.launch(f[0], 1, 1, c));
    CHECK(d.host(c, 1)[0] == 2);
    GOOD(driver().unload(m[0]));
    GOOD(driver().unload(m[1]));
    CHECK_FAILS(d.launch(f[0], 1, 1, c), "not a valid function");
    CHECK_FAILS(driver().unload(m[0]), "not a valid module");
  }
}

TEST_CASE("emulator: a program takes memory, and stays while work may use it") {
  const char* image = nullptr;
  size_t bytes = 0;
  GOOD(driver().compile("struct P { float* x; };\nKERNEL(one, P, 32) { *p.x = 1; }", "one", 9, 0,
                        &image, &bytes));
  for (const char* lazy : {"0", "1"}) {
    CAPTURE(lazy);
    Device d("BRRR_EMULATOR_LAZY", lazy);
    float* x = d.device(std::vector<float>(1));
    size_t before = 0, after = 0, total = 0;
    GOOD(driver().memory(&before, &total));
    Module* m = nullptr;
    Function* f = nullptr;
    GOOD(driver().load(image, bytes, &m));
    GOOD(driver().memory(&after, &total));
    CHECK(before - after == bytes);
    GOOD(driver().function(m, "one", 0, &f));
    Event *first = nullptr, *last = nullptr;
    for (Event** e : {&first, &last}) GOOD(driver().make_event(e));
    GOOD(driver().record(first, d.stream));
    GOOD(d.launch(f, 1, 1, x));
    GOOD(driver().wait(first));
    CHECK_FAILS(driver().unload(m), "may still be queued");
    Graph* g = nullptr;
    bool done = false;
    size_t taken = 0;
    GOOD(driver().begin_capture(d.stream));
    GOOD(d.launch(f, 1, 1, x));
    size_t nodes = 0;
    GOOD(driver().end_capture(d.stream, &g, &nodes));
    GOOD(driver().upload(g, d.stream, &done, &taken));
    GOOD(driver().synchronize(d.stream));
    GOOD(driver().launch_graph(g, d.stream));
    GOOD(driver().release_graph(g));
    CHECK_FAILS(driver().unload(m), "may still be queued");
    GOOD(driver().record(last, d.stream));
    SUBCASE("the event") { GOOD(driver().wait(last)); }
    SUBCASE("the stream") { GOOD(driver().synchronize(d.stream)); }
    SUBCASE("whatever waits for all") {
      d.device(std::vector<float>(1));
      GOOD(driver().release(d.allocated.back()));
      d.allocated.pop_back();
    }
    GOOD(driver().unload(m));
  }
  Device d("BRRR_EMULATOR_MEMORY", "1");
  char something;
  Module* none = reinterpret_cast<Module*>(&something);
  GOOD(driver().load(image, bytes, &none));
  CHECK(none == nullptr);
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
  GOOD(d.launch(kernel(program, "add"), 1, 256, Vectors{a, a, inside, 104}));
  CHECK_FAILS(driver().synchronize(d.stream),
              "bytes 400 to 415 of the device allocation of 400 bytes");
  GOOD(driver().synchronize(d.stream));
  GOOD(d.launch(kernel(program, "add"), 1, 256, Vectors{a, a, inside - 2, 1}));
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
  CHECK_FAILS(driver().synchronize(no_stream), "not a valid stream");
  CHECK_FAILS(driver().record(no_event, d.stream), "not a valid event");
  Function* add = kernel(program, "add");
  const Vectors p{c, c, c, 64};
  CHECK_FAILS(d.launch(add, 0, 64, p), "grid (0, 1, 1)");
  CHECK_FAILS(d.launch(add, 1, 257, p), "compiled for 256 at most");
  CHECK_FAILS(d.launch(add, 1, 64, p, 64 << 10), "shared memory");
  CHECK_FAILS(d.launch(add, 1, 64, c), "8 bytes of arguments; it takes 32");
  Function* none = nullptr;
  CHECK_FAILS(driver().function(nullptr, "add", 0, &none), "not a valid module");

  const char* image = nullptr;
  size_t bytes = 0;
  const Failure log =
      driver().compile("int x;\nKERNEL(k, int, 32) { y = 1; }", "broken", 9, 0, &image, &bytes);
  CHECK_FAILS(log, "broken:2:");
  Module* module = nullptr;
  CHECK_FAILS(driver().load("nonsense", 8, &module), "load: ");
}

TEST_CASE("emulator: a lazy device exposes missing waits") {
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
  GOOD(d.launch(kernel(program, "add"), 1, 64, Vectors{a, b, c, 64}));
  GOOD(driver().copy(out, c, bytes, Way::ToHost, d.stream));
  Event* e = nullptr;
  GOOD(driver().make_event(&e));
  GOOD(driver().wait(e));  // never recorded
  GOOD(driver().record(e, d.stream));
  CHECK(std::isnan(out[0]));  // read too early
  pageable.assign(n, 9);      // staged: may change
  in[0] = 5;                  // pinned: changed too early

  SUBCASE("the stream") { GOOD(driver().synchronize(d.stream)); }
  SUBCASE("an event") { GOOD(driver().wait(e)); }
  SUBCASE("a copy to pageable memory") {
    GOOD(driver().copy(pageable.data(), c, bytes, Way::ToHost, d.stream));
    CHECK(pageable[1] == 3);
  }
  CHECK(out[0] == 6);
  CHECK(out[1] == 3);
}

TEST_CASE("emulator: a failure on a lazy device is reported by the wait") {
  Device d("BRRR_EMULATOR_LAZY", "1");
  float* c = d.device(std::vector<float>(64, 1));
  GOOD(d.launch(kernel(program, "half_a_warp"), 1, 64, Vectors{nullptr, nullptr, c, 0}));
  CHECK_FAILS(driver().synchronize(d.stream), "kernel half_a_warp");
  CHECK(d.host(c, 1)[0] == 1);
}
