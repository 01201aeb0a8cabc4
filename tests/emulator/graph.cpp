// A capture is a list of the work that its stream would have run; a launch of the graph runs it.

#include "tests/emulator/graph.h"

#include "tests/emulator/device.h"

namespace brrr::emulator {

using namespace cuda;

Stream*& captured() {
  thread_local Stream* s = nullptr;
  return s;
}

Failure keep(const char* words) {
  thread_local std::string kept;
  kept = words;
  if (captured()) {
    const std::lock_guard lock(device().mutex);
    std::string& spoilt = captured()->capture->spoilt;
    if (spoilt.empty()) spoilt = kept;
  }
  return kept.c_str();
}

Stream& Device::stream(Stream* s) {
  Stream& found = streams.get(s, "stream");
  if (found.capture && captured() != s) {
    // CUDA notes what it gets or spoils the capture, depending on the call.
    std::string& spoilt = found.capture->spoilt;
    if (spoilt.empty()) spoilt = "another thread used the stream";
    fail("the stream is captured by another thread");
  }
  BRRR_CHECK(!captured() || captured() == s, "this thread captures another stream");
  return found;
}

void Device::step(const char* what) {
  BRRR_CHECK(fail_in == 0 || --fail_in > 0, "{} fails because a test asked for it", what);
}

Failure begin_capture(Stream* s) {
  return guarded([&](Device& d) {
    Stream& stream = d.stream(s);
    d.step("begin_capture");
    stream.capture = std::make_unique<Capture>();
    captured() = s;
  });
}

Failure end_capture(Stream* s, Graph** g, size_t* nodes) {
  *g = nullptr;
  return queueing(s, [&](Device& d, Stream& stream) {
    BRRR_CHECK(stream.capture, "end_capture: the stream is not captured");
    const auto capture = std::move(stream.capture);
    captured() = nullptr;
    BRRR_CHECK(capture->spoilt.empty(), "the capture was spoilt: {}", capture->spoilt);
    d.step("end_capture");
    *nodes = capture->nodes.size();
    *g = d.graphs.add({std::make_shared<const Nodes>(std::move(capture->nodes)),
                       std::move(capture->modules), capture->bytes});
    ++d.counters.graphs;
  });
}

Failure upload(Graph* g, Stream* s, bool* done) {
  *done = false;
  return guarded([&](Device& d) {
    Graph& graph = d.graphs.get(g, "graph");
    d.stream(s);
    d.step("upload");
    if (!graph.ready && graph.bytes > d.memory.left()) return;
    if (!std::exchange(graph.ready, true)) d.memory.used += graph.bytes;
    *done = true;
  });
}

Failure launch_graph(Graph* g, Stream* s) {
  return guarded([&](Device& d) {
    const Graph& graph = d.graphs.get(g, "graph");
    Stream& stream = d.stream(s);
    BRRR_CHECK(graph.ready, "launch_graph: the graph was not uploaded");
    for (Module* m : graph.modules) d.modules.get(m, "module");
    d.step("launch_graph");
    ++d.counters.graph_launches;
    d.push(stream, [nodes = graph.nodes] {
      for (const auto& node : *nodes) node();
    });
    for (Module* m : graph.modules) m->used[&stream] = stream.queued;
  });
}

Failure release_graph(Graph* g) {
  return guarded([&](Device& d) {
    const Graph& graph = d.graphs.get(g, "graph");
    if (graph.ready) d.memory.used -= graph.bytes;
    d.graphs.remove(g, "graph");
    --d.counters.graphs;
  });
}

Failure graph_bytes(Graph* g, size_t* bytes) {
  return guarded([&](Device& d) { *bytes = d.graphs.get(g, "graph").bytes; });
}

}  // namespace brrr::emulator

extern "C" {

__attribute__((visibility("default"))) brrr::emulator::Counters brrr_emulator_counters() {
  brrr::emulator::Device& d = brrr::emulator::device();
  const std::lock_guard lock(d.mutex);
  return d.counters;
}

__attribute__((visibility("default"))) void brrr_emulator_fail(int step) {
  brrr::emulator::Device& d = brrr::emulator::device();
  const std::lock_guard lock(d.mutex);
  d.fail_in = step;
}
}
