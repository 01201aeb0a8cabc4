// Captures and graphs.
//
// Captures are thread-local: CUDA then restricts the calls of this thread only. What it forbids
// depends on the call, and some calls (an event of other work, another stream) would silently be
// captured or run, so this file enforces the rules of driver.h before CUDA sees a call.

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "backends/cuda/module/module.h"

namespace brrr::cuda {

struct Graph : NotCopied {
  cudaGraph_t captured = nullptr;  // as captured, until it is instantiated
  cudaGraphExec_t exec = nullptr;  // the instantiated graph
  size_t bytes = 0;

  ~Graph() {
    if (captured) cudaGraphDestroy(captured);
    if (exec) cudaGraphExecDestroy(exec);
  }
};

namespace {

thread_local struct Capture {
  cudaStream_t stream = nullptr;  // null: this thread does not capture
  bool invalid = false;
  std::string reason;                // the first failure during the capture
  std::vector<cudaStream_t> forked;  // other streams that joined the capture
  std::vector<cudaEvent_t> events;   // recorded in the capture
} capture;

// Calls `work` and returns by how much free device memory has shrunk. CUDA offers no better way to
// tell what a graph takes; concurrent allocations are counted, too.
template <class Work> size_t memory_taken(Work work) {
  size_t before = 0, after = 0, total = 0;
  BRRR_CALL(cudaMemGetInfo, &before, &total);
  work();
  BRRR_CALL(cudaMemGetInfo, &after, &total);
  return before - std::min(before, after);
}

template <class T> bool holds(const std::vector<T>& all, T one) {
  return std::find(all.begin(), all.end(), one) != all.end();
}

}  // namespace

void invalidate_capture(const char* message) noexcept {
  if (!capture.stream || capture.invalid) return;
  capture.invalid = true;
  try {
    capture.reason = message;
  } catch (const std::bad_alloc&) {
    capture.reason.clear();
  }
}

void refuse_in_capture(const char* call) {
  if (capture.stream) fail("{}: not while this thread captures", call);
}

void refuse_other_stream(cudaStream_t stream) {
  if (!capture.stream || capture.stream == stream || holds(capture.forked, stream)) return;
  fail("this thread captures another stream");
}

void note_event(cudaEvent_t event) {
  if (capture.stream && !holds(capture.events, event)) capture.events.push_back(event);
}

void admit_stream(cudaStream_t stream, cudaEvent_t event) {
  if (!capture.stream) return;
  if (!holds(capture.events, event)) fail("await: the event was not recorded in this capture");
  if (stream != capture.stream && !holds(capture.forked, stream)) capture.forked.push_back(stream);
}

void refuse_pageable(const void* host) {
  if (!capture.stream) return;
  cudaPointerAttributes found{};
  BRRR_CALL(cudaPointerGetAttributes, &found, host);
  if (found.type != cudaMemoryTypeHost) fail("copy: a capture takes no copy of pageable memory");
}

Failure begin_capture(Stream* s) {
  return on_device([&] {
    const cudaStream_t stream = stream_of(s);
    BRRR_CALL(cudaStreamBeginCapture, stream, cudaStreamCaptureModeThreadLocal);
    capture = {};
    capture.stream = stream;
  });
}

Failure end_capture(Stream* s, Graph** g, size_t* nodes) {
  *g = nullptr;
  return in_stream(s, [&](cudaStream_t stream) {
    if (!capture.stream) fail("end_capture: this thread does not capture the stream");
    cudaGraph_t captured = nullptr;
    // Ends the capture in any case. If an earlier call failed, its message says more than `status`.
    const cudaError_t status = cudaStreamEndCapture(stream, &captured);
    capture.stream = nullptr;
    auto graph = std::make_unique<Graph>();
    graph->captured = captured;
    if (capture.invalid) {
      cudaGetLastError();
      fail("the capture was invalidated: {}", capture.reason);
    }
    check(status, "cudaStreamEndCapture");
    BRRR_CALL(cudaGraphGetNodes, graph->captured, nullptr, nodes);
    *g = graph.release();
  });
}

Failure upload(Graph* g, Stream* s, bool* done, size_t* bytes) {
  *done = false;
  return on_device([&] {
    g->bytes += memory_taken([&] {
      if (!g->exec) {
        const cudaError_t status = cudaGraphInstantiate(&g->exec, g->captured, 0ull);
        if (status != cudaSuccess) g->exec = nullptr;
        if (!enough(status, "cudaGraphInstantiate")) return;
        BRRR_CALL(cudaGraphDestroy, std::exchange(g->captured, nullptr));
      }
      *done = enough(cudaGraphUpload(g->exec, stream_of(s)), "cudaGraphUpload");
    });
    *bytes = g->bytes;
  });
}

Failure launch_graph(Graph* g, Stream* s) {
  return on_device([&] {
    if (!g->exec) fail("launch_graph: the graph was not uploaded");
    BRRR_CALL(cudaGraphLaunch, g->exec, stream_of(s));
  });
}

// CUDA keeps the resources of unfinished launches alive.
Failure release_graph(Graph* g) {
  return on_device([&] {
    const cudaGraphExec_t exec = std::exchange(g->exec, nullptr);
    delete g;
    if (exec) BRRR_CALL(cudaGraphExecDestroy, exec);
  });
}

}  // namespace brrr::cuda
