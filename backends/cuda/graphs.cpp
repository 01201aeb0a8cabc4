#include <mutex>

#include "backends/cuda/backend.h"
#include "backends/cuda/device.h"
#include "backends/cuda/kernels.h"
#include "backends/cuda/pool.h"
#include "backends/cuda/staging.h"
#include "core/check.h"
#include "core/moved.h"

namespace brrr {

// A graph and the memory that its kernels take for themselves.
struct DeviceGraph : NotCopied {
  cuda::Graph* graph = nullptr;
  size_t bytes = 0;
  std::vector<std::pair<void*, size_t>> scratch;

  ~DeviceGraph() {
    if (graph) cuda::device().driver->release_graph(graph);
    for (const auto& [p, size] : scratch) cuda::pool().deallocate(p, size);
  }
};

namespace cuda {

// The capture stream is one; captures of several threads take turns.
static std::mutex& capturing() {
  static std::mutex& m = *new std::mutex;
  return m;
}

static void begin() {
  OpenDevice& d = device();
  capturing().lock();
  const Failure failure = d.driver->begin_capture(d.capture);
  if (failure) {
    capturing().unlock();
    fail("cuda: capture: {}", failure);
  }
  static uint64_t captures = 0;
  OpenDevice::capturing = ++captures;
  pool().hold();
}

// Leaves the capture, with what it gave or why there is nothing.
static Failure leave(DeviceGraph& g, size_t* nodes) {
  OpenDevice& d = device();
  OpenDevice::capturing = 0;
  g.scratch = pool().taken();
  const Failure failure = d.driver->end_capture(d.capture, &g.graph, nodes);
  capturing().unlock();
  return failure;
}

static DeviceGraph* end(size_t* nodes) {
  const OpenDevice& d = device();
  auto g = std::make_unique<DeviceGraph>();
  if (const Failure failure = leave(*g, nodes)) fail("cuda: capture: {}", failure);
  const bool ready = pool().make_room([&] {
    bool done = false;
    check(d.driver->upload(g->graph, d.compute, &done), "graph");
    return done;
  });
  BRRR_CHECK(ready, "cuda: no device memory left for a graph of {} nodes; {}", *nodes,
             pool().describe());
  check(d.driver->graph_bytes(g->graph, &g->bytes), "graph");
  return g.release();
}

static void abandon() noexcept {
  if (!OpenDevice::capturing) return;
  DeviceGraph g;
  size_t nodes = 0;
  leave(g, &nodes);
}

static void launch_graph(DeviceGraph* g) {
  const OpenDevice& d = device();
  check(d.driver->launch_graph(g->graph, d.compute), "graph");
}

static void run(void* kernel, const char* name, const Grid& g, int threads, const void* arguments,
                size_t bytes) {
  cuda::launch(static_cast<Function*>(kernel), name, g, threads, arguments, bytes);
}

static char* arena(size_t bytes) {
  void* begin = nullptr;
  const bool there = pool().make_room([&] {
    bool done = false;
    check(device().driver->arena(bytes, &begin, &done), "arena");
    return done;
  });
  return there ? static_cast<char*>(begin) : nullptr;
}

const GraphBackend& graph_backend() {
  static const GraphBackend b{
      .begin = begin,
      .end = end,
      .abandon = abandon,
      .launch = launch_graph,
      .release = [](DeviceGraph* g) noexcept { delete g; },
      .bytes = [](DeviceGraph* g) { return g->bytes; },
      .run = run,
      .arena = arena,
      .upload = [](void* to, const HostPart* parts,
                   size_t n) { staging().to_device(to, parts, n); },
      .site = [](const std::string& path) { return staging().site(path); },
      .copy_out = [](const void* from, size_t bytes) { return staging().copy_out(from, bytes); },
      .read = [](HostCopy* c, void* to, size_t offset,
                 size_t bytes) { staging().read(*c, to, offset, bytes); },
      .drop = [](HostCopy* c) noexcept { staging().drop(c); },
  };
  return b;
}

}  // namespace cuda

}  // namespace brrr
