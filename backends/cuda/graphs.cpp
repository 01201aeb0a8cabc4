#include <mutex>

#include "backends/cuda/device.h"
#include "backends/cuda/pool.h"
#include "core/backend.h"
#include "core/check.h"
#include "core/moved.h"

namespace brrr {

// A graph and the memory that was allocated and freed during its capture, which its kernels use.
struct DeviceGraph : NotCopied {
  cuda::Graph* graph = nullptr;
  size_t bytes = 0;
  std::vector<std::pair<void*, size_t>> scratch;

  ~DeviceGraph() {
    if (graph) cuda::device().driver->release_graph(graph);
    for (const auto& [p, size] : scratch) cuda::pool().deallocate(p, size);
  }
};

namespace device_queue {

using namespace cuda;

// There is one capture stream: captures of several threads are serialised.
static std::mutex one_capture;

void begin_capture() {
  OpenDevice& d = device();
  one_capture.lock();
  const Failure failure = d.driver->begin_capture(d.capture);
  if (failure) {
    one_capture.unlock();
    fail("cuda: capture: {}", failure);
  }
  static uint64_t captures = 0;
  OpenDevice::capturing = ++captures;
  pool().hold();
}

// Ends the capture and sets the graph and its memory; returns the failure, if any.
static Failure leave(DeviceGraph& g, size_t* nodes) {
  OpenDevice& d = device();
  OpenDevice::capturing = 0;
  const Failure failure = d.driver->end_capture(d.capture, &g.graph, nodes);
  one_capture.unlock();
  g.scratch = pool().taken();
  return failure;
}

DeviceGraph* end_capture(size_t* nodes) {
  const OpenDevice& d = device();
  auto g = std::make_unique<DeviceGraph>();
  if (const Failure failure = leave(*g, nodes)) fail("cuda: capture: {}", failure);
  const bool ready = pool().retry_after_trim([&] {
    bool done = false;
    check(d.driver->upload(g->graph, d.compute, &done, &g->bytes), "graph");
    return done;
  });
  BRRR_CHECK(ready, "cuda: no device memory left for a graph of {} nodes; {}", *nodes,
             pool().describe());
  return g.release();
}

void abandon_capture() noexcept {
  if (!OpenDevice::capturing) return;
  DeviceGraph g;
  size_t nodes = 0;
  leave(g, &nodes);
}

void launch(DeviceGraph* g) {
  const OpenDevice& d = device();
  check(d.driver->launch_graph(g->graph, d.compute), "graph");
}

void release(DeviceGraph* g) noexcept { delete g; }
size_t bytes_of(DeviceGraph* g) { return g->bytes; }

char* arena(size_t bytes) {
  void* begin = nullptr;
  const bool there = pool().retry_after_trim([&] {
    bool done = false;
    check(device().driver->arena(bytes, &begin, &done), "arena");
    return done;
  });
  return there ? static_cast<char*>(begin) : nullptr;
}

}  // namespace device_queue

}  // namespace brrr
