#include "backends/cuda/graphs.h"

#include <chrono>
#include <mutex>

#include "backends/cuda/device.h"
#include "backends/cuda/kernels.h"
#include "backends/cuda/pool.h"
#include "core/check.h"

namespace brrr {

// A graph and the memory that its kernels take for themselves.
struct DeviceGraph {
  cuda::Graph* graph;
  size_t bytes;
  std::vector<std::pair<void*, size_t>> scratch;
};

struct KernelModule {
  cuda::Module* module;
};

namespace cuda {

namespace {

Staging* copies;

// The capture stream is one; captures of several threads take turns.
std::mutex& capturing() {
  static std::mutex& m = *new std::mutex;
  return m;
}

void give_back(const std::vector<std::pair<void*, size_t>>& scratch) {
  for (const auto& [p, bytes] : scratch) pool().deallocate(p, bytes);
}

void begin() {
  OpenDevice& d = device();
  capturing().lock();
  const Failure failure = d.driver->begin_capture(d.capture);
  if (failure) {
    capturing().unlock();
    fail("cuda: capture: {}", failure);
  }
  OpenDevice::capturing = true;
  pool().hold();
}

// Leaves the capture; what it gave, or why there is nothing.
Failure leave(Graph** graph, size_t* nodes, std::vector<std::pair<void*, size_t>>* scratch) {
  OpenDevice& d = device();
  OpenDevice::capturing = false;
  *scratch = pool().taken();
  const Failure failure = d.driver->end_capture(d.capture, graph, nodes);
  capturing().unlock();
  return failure;
}

void release(DeviceGraph* g) noexcept {
  device().driver->release_graph(g->graph);
  give_back(g->scratch);
  delete g;
}

DeviceGraph* end(size_t* nodes) {
  OpenDevice& d = device();
  auto g = std::make_unique<DeviceGraph>();
  const Failure failure = leave(&g->graph, nodes, &g->scratch);
  if (failure) {
    give_back(g->scratch);
    fail("cuda: capture: {}", failure);
  }
  try {
    const bool ready = pool().make_room([&] {
      bool done = false;
      check(d.driver->upload(g->graph, d.compute, &done), "graph");
      return done;
    });
    BRRR_CHECK(ready, "cuda: no device memory left for a graph of {} nodes; {}", *nodes,
               pool().describe());
    check(d.driver->graph_bytes(g->graph, &g->bytes), "graph");
  } catch (...) {
    release(g.release());
    throw;
  }
  return g.release();
}

void abandon() noexcept {
  if (!OpenDevice::capturing) return;
  Graph* graph = nullptr;
  size_t nodes = 0;
  std::vector<std::pair<void*, size_t>> scratch;
  if (!leave(&graph, &nodes, &scratch) && graph) device().driver->release_graph(graph);
  give_back(scratch);
}

void launch_graph(DeviceGraph* g) {
  OpenDevice& d = device();
  d.counters.graph_launches.fetch_add(1, std::memory_order_relaxed);
  check(d.driver->launch_graph(g->graph, d.compute), "graph");
}

void run(void* kernel, const char* name, const Grid& g, int threads, const void* arguments,
         size_t bytes) {
  cuda::launch(static_cast<Function*>(kernel), name, g, threads, arguments, bytes);
}

// A range of addresses as large as the device's memory, of which as much is there as the largest
// step has asked for.
char* arena(size_t bytes) {
  static std::mutex& mutex = *new std::mutex;
  static void* range = nullptr;
  static size_t mapped = 0;
  const std::lock_guard lock(mutex);
  OpenDevice& d = device();
  if (!range) check(d.driver->reserve(&range, d.properties.memory_bytes), "arena");
  if (bytes > mapped) {
    const bool there = pool().make_room([&] {
      bool done = false;
      check(d.driver->map(range, bytes, &done), "arena");
      return done;
    });
    if (!there) return nullptr;
    mapped = bytes;
  }
  return static_cast<char*>(range);
}

}  // namespace

const GraphBackend& graph_backend(Staging& staging) {
  copies = &staging;
  static const GraphBackend b{
      .begin = begin,
      .end = end,
      .abandon = abandon,
      .launch = launch_graph,
      .release = release,
      .bytes = [](DeviceGraph* g) { return g->bytes; },
      .run = run,
      .arena = arena,
      .upload = [](void* to, const HostPart* parts, size_t n) { copies->to_device(to, parts, n); },
      .site = [](const std::string& path) { return copies->site(path); },
      .copy_out = [](const void* from, size_t bytes) { return copies->copy_out(from, bytes); },
      .read = [](HostCopy* c, void* to, size_t offset,
                 size_t bytes) { copies->read(*c, to, offset, bytes); },
      .drop = [](HostCopy* c) noexcept { copies->drop(c); },
  };
  return b;
}

KernelModule* build(const std::string& source, BuildReport& report) {
  const auto start = std::chrono::steady_clock::now();
  const OpenDevice& d = device();
  report = {};
  const std::string code = machine_code(*d.tools, source, "step", d.properties.major,
                                        d.properties.minor, &report.cached);
  auto m = std::make_unique<KernelModule>(load_module(code, "step"));
  report.compiler = fmt::format("NVRTC {}", d.tools->compiler_version());
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return m.release();
}

void* symbol(KernelModule* m, const char* name) {
  Function* f = nullptr;
  check(device().driver->function(m->module, name, 0, &f), name);
  return f;
}

void unload(KernelModule* m) noexcept {
  if (!m) return;
  const OpenDevice& d = device();
  d.driver->synchronize(d.compute);  // Replays that run still use it.
  d.driver->unload(m->module);
  delete m;
}

}  // namespace cuda

}  // namespace brrr
