// Device memory of other things than tensors: the code of kernels, graphs, the library's workspace.
// The pool gives up cached blocks for it, and it is given back.

#include "backends/cuda/device.h"
#include "backends/cuda/kernels.h"
#include "backends/cuda/pool.h"
#include "brrr.h"
#include "tests/cuda_cases.h"
#include "tests/emulator_calls.h"

using namespace brrr;
using namespace brrr::test;

namespace {

constexpr int64_t kMiB = 1 << 20;

struct Bytes {
  Bytes() { cuda::check(cuda::device().driver->memory(&free, &total), "memory"); }
  size_t free = 0, total = 0;
};
size_t free_bytes() { return Bytes().free; }

// A device with 8 MiB more than is in use already, all of it held by a tensor.
struct Full {
  Full() { CHECK(free_bytes() == 0); }
  static size_t room() {
    empty_cache(kCUDA);
    const Bytes now;
    return now.total - now.free + 8 * kMiB;
  }
  EmulatorSetting memory{"BRRR_EMULATOR_MEMORY", std::to_string(room())};
  Tensor all = empty({8 * kMiB}, kUInt8, kCUDA);
};

// Builds a kernel that is in no cache.
void build(const char* value) {
  static const char* const name = "one";
  static uint64_t serial = 0;
  cuda::find_kernel({&name, ++serial}, name, 0, [&] {
    return fmt::format("struct P {{ float* x; }};\nKERNEL(one, P, 32) {{ *p.x = {}; }}", value);
  });
}

// A graph of one copy.
struct Copy {
  Copy(void* to, const void* from) {
    device_queue::begin_capture();
    backend(DeviceType::CUDA).copy(to, from, 4);
    graph = device_queue::end_capture(&nodes);
  }
  ~Copy() { device_queue::release(graph); }
  Copy(const Copy&) = delete;
  size_t nodes = 0;
  DeviceGraph* graph;
};

}  // namespace

TEST_CASE("cuda: code and graphs get the memory of freed tensors") {
  if (!have_device() || !counters()) return;
  const Tensor x = full({1}, 3.0, kFloat32, kCUDA), y = full({1}, 0.0, kFloat32, kCUDA);
  {
    Full device;
    device.all = {};  // The pool caches its memory.
    CHECK(free_bytes() == 0);
    build("1");
    CHECK(free_bytes() > 0);
  }
  Full device;
  device.all = {};
  CHECK(free_bytes() == 0);
  const Copy copy(y.impl()->data(), x.impl()->data());
  CHECK(copy.nodes == 1);
  device_queue::launch(copy.graph);
  CHECK(y.item<float>() == 3);
}

TEST_CASE("cuda: code and graphs without memory are errors that leave nothing behind") {
  if (!have_device() || !counters()) return;
  const Tensor x = full({1}, 3.0, kFloat32, kCUDA), y = full({1}, 0.0, kFloat32, kCUDA);
  const auto graphs = counters()->graphs;
  Full device;
  const auto said = [](const std::string& why, const char* part) {
    CHECK_MESSAGE(why.find(part) == 0, why);
    CHECK_MESSAGE(why.find("; the largest: 1 x 8388608 of ") != why.npos, why);
  };
  said(error_of([] { build("2"); }), "cuda: no device memory left for the code of one (");
  said(error_of([&] { Copy(y.impl()->data(), x.impl()->data()); }),
       "cuda: no device memory left for a graph of 1 nodes; ");
  CHECK(counters()->graphs == graphs);
  device.all = {};
  build("2");
  CHECK(Copy(y.impl()->data(), x.impl()->data()).nodes == 1);
}

TEST_CASE("cuda step: without memory for its code or graph it runs, and is replayed later") {
  if (!have_device() || !counters()) return;
  const Tensor x = rand({64}, kCUDA);
  const auto body = [](const Tensor& t) { return (t * 3.0 + 0.5).exp(); };
  const Tensor want = body(x);
  auto step = brrr::step(body);
  {
    const Full device;  // The pool still has small blocks.
    for (int i = 0; i < 3; ++i) {
      const std::string why = error_of([&] { check_same(on_cpu(step(x)), on_cpu(want)); });
      CHECK_MESSAGE((why.empty() || why.find("memory") != why.npos), why);
    }
  }
  for (int i = 0; i < 20; ++i) check_same(on_cpu(step(x)), on_cpu(want));
  CHECK(step.stats().launches_per_replay == 1);
}

TEST_CASE("cuda step: its code is freed when it dies, once its work is done") {
  if (!have_device() || !counters()) return;
  for (const char* lazy : {"0", "1"}) {
    CAPTURE(lazy);
    const EmulatorSetting late("BRRR_EMULATOR_LAZY", lazy);
    const Tensor x = full({64}, 2.0, kFloat32, kCUDA);
    std::vector<size_t> free;
    for (int round = 0; round < 3; ++round) {
      Tensor last;
      {
        auto step = brrr::step([](const Tensor& t) { return t * 3.0 + 0.25; });
        for (int i = 0; i < 5; ++i) last = step(x);
        CHECK(step.stats().launches_per_replay == 1);
      }
      CHECK(last.to_vector<float>()[63] == 6.25f);
      last = {};
      empty_cache(kCUDA);
      free.push_back(free_bytes());
    }
    CHECK(free[1] == free[2]);
  }
}
