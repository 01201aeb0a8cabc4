// A capture records, per stream, the work that would have run; launching the graph runs it.

#include "tests/emulator/graph.h"

#include <algorithm>
#include <chrono>

#include "core/thread_own.h"
#include "tests/emulator/device.h"

namespace brrr::emulator {

using namespace cuda;

Stream*& captured() {
  thread_local Stream* s = nullptr;
  return s;
}

Failure store_failure(const char* message) {
  struct Stored : std::string {};
  const std::string& stored = thread_own<Stored>().assign(message);
  if (captured()) {
    const std::lock_guard lock(device().mutex);
    std::string& failure = captured()->capture->failure;
    if (failure.empty()) failure = stored;
  }
  return stored.c_str();
}

Stream& Device::stream(Stream* s) {
  Stream& found = streams.get(s, "stream");
  if (found.capture && (!captured() || captured()->capture != found.capture)) {
    // CUDA captures the work or invalidates the capture, depending on the call.
    std::string& failure = found.capture->failure;
    if (failure.empty()) failure = "another thread used the stream";
    fail("the stream is captured by another thread");
  }
  BRRR_CHECK(!captured() || found.capture, "this thread captures another stream");
  return found;
}

void Device::step(const char* what) {
  BRRR_CHECK(fail_in == 0 || --fail_in > 0, "{} fails because a test asked for it", what);
}

Failure begin_capture(Stream* s) {
  return guarded([&](Device& d) {
    Stream& stream = d.stream(s);
    d.step("begin_capture");
    auto capture = std::make_shared<Capture>();
    capture->streams = {s};
    capture->joined = {0};
    stream.capture = std::move(capture);
    stream.branch = 0;
    captured() = s;
  });
}

namespace {

// Makes a stream that awaits an event of the capture a branch of it, and adds the await.
void join_capture(Device& d, Stream* s, const Event& e) {
  Stream& stream = d.streams.get(s, "stream");
  const auto capture = captured()->capture;
  BRRR_CHECK(e.captured && e.capture.lock() == capture,
             "await: the event was not recorded in this capture");
  BRRR_CHECK(!stream.capture || stream.capture == capture, "the stream is captured by another");
  if (!stream.capture) {
    const auto at = std::find(capture->streams.begin(), capture->streams.end(), s);
    stream.branch = static_cast<size_t>(at - capture->streams.begin());
    stream.capture = capture;
    if (at == capture->streams.end()) {
      capture->streams.push_back(s);
      capture->joined.push_back(0);
      capture->nodes.emplace_back();
    }
  }
  if (stream.branch == e.branch) return;
  d.step("a node");
  capture->nodes[stream.branch].push_back({{}, e.branch, e.until});
  if (stream.branch == 0) capture->joined[e.branch] = std::max(capture->joined[e.branch], e.until);
}

// Runs a branch until `until` of its nodes are done. Another branch runs only when it is awaited:
// of all valid orders the one most likely to reveal a missing await.
void run_branch(const Nodes& nodes, std::vector<size_t>& done, size_t branch, size_t until) {
  while (done[branch] < until) {
    const Node& node = nodes[branch][done[branch]++];
    node.work ? node.work() : run_branch(nodes, done, node.branch, node.until);
  }
}

}  // namespace

Failure record(Event* e, Stream* s) {
  return queueing(s, [&](Device& d, Stream& stream) {
    Event& event = d.events.get(e, "event");
    if (stream.capture) {
      const size_t nodes = stream.capture->nodes[stream.branch].size();
      event = {nullptr, nodes, event.timer, 0, stream.capture, stream.branch, true};
      return;
    }
    const std::chrono::duration<double, std::milli> now =
        std::chrono::steady_clock::now().time_since_epoch();
    event = {&stream, stream.queued, event.timer, now.count()};
  });
}

Failure await(Stream* s, Event* e) {
  try {
    Device& d = device();
    const std::lock_guard lock(d.mutex);
    const Event& event = d.events.get(e, "event");
    if (captured()) {
      join_capture(d, s, event);
      return nullptr;
    }
    Stream& stream = d.stream(s);
    BRRR_CHECK(!event.captured, "await: the event was recorded in a capture");
    if (!event.stream || event.stream == &stream) return nullptr;
    d.push(stream, [&d, from = event.stream, until = event.until] { d.run(*from, until); });
    return nullptr;
  } catch (const std::exception& error) {
    return store_failure(error.what());
  }
}

Failure end_capture(Stream* s, Graph** g, size_t* nodes) {
  *g = nullptr;
  return queueing(s, [&](Device& d, Stream& stream) {
    BRRR_CHECK(stream.capture, "end_capture: the stream is not captured");
    const auto capture = stream.capture;
    for (Stream* member : capture->streams) member->capture.reset();
    captured() = nullptr;
    BRRR_CHECK(capture->failure.empty(), "the capture was invalidated: {}", capture->failure);
    d.step("end_capture");
    *nodes = 0;
    for (size_t k = 0; k < capture->nodes.size(); ++k) {
      BRRR_CHECK(k == 0 || capture->joined[k] == capture->nodes[k].size(),
                 "end_capture: the stream has not awaited all of another that belongs to the "
                 "capture");
      *nodes += static_cast<size_t>(
          std::count_if(capture->nodes[k].begin(), capture->nodes[k].end(),
                        [](const Node& node) { return static_cast<bool>(node.work); }));
    }
    *g = d.graphs.add({std::make_shared<const Nodes>(std::move(capture->nodes)),
                       std::move(capture->modules), capture->bytes});
    ++d.counters.graphs;
  });
}

Failure upload(Graph* g, Stream* s, bool* done, size_t* bytes) {
  *done = false;
  return guarded([&](Device& d) {
    Graph& graph = d.graphs.get(g, "graph");
    d.stream(s);
    d.step("upload");
    if (!graph.ready && graph.bytes > d.memory.left()) return;
    if (!std::exchange(graph.ready, true)) d.memory.used += graph.bytes;
    *done = true;
    *bytes = graph.bytes;
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
      std::vector<size_t> done(nodes->size());
      run_branch(*nodes, done, 0, nodes->front().size());
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

}  // namespace brrr::emulator

extern "C" {

__attribute__((visibility("default"))) brrr::emulator::Counters brrr_emulator_counters() {
  brrr::emulator::Device& d = brrr::emulator::device();
  const std::lock_guard lock(d.mutex);
  brrr::emulator::Counters now = d.counters;
  d.streams.each([&](brrr::cuda::Stream& s) { now.waiting += s.queue.size(); });
  return now;
}

__attribute__((visibility("default"))) void brrr_emulator_fail(int step) {
  brrr::emulator::Device& d = brrr::emulator::device();
  const std::lock_guard lock(d.mutex);
  d.fail_in = step;
}
}
