// Captures and graphs.
//
// A capture is thread-local: CUDA then forbids only this thread what would disturb it. What it
// forbids depends on the call, and some calls (an event of other work, another stream) would be
// captured or run without a word, so the rule of driver.h is kept here, before CUDA.

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "backends/cuda/module/module.h"

namespace brrr::cuda {

struct Graph : NotCopied {
  cudaGraph_t noted = nullptr;     // what was captured, until it is
  cudaGraphExec_t exec = nullptr;  // a graph that runs
  size_t bytes = 0;

  ~Graph() {
    if (noted) cudaGraphDestroy(noted);
    if (exec) cudaGraphExecDestroy(exec);
  }
};

namespace {

thread_local struct Capture {
  cudaStream_t stream = nullptr;  // null: this thread does not capture
  bool spoilt = false;
  std::string words;                 // the first failure since the beginning
  std::vector<cudaStream_t> forked;  // streams that belong to it beside the first
  std::vector<cudaEvent_t> events;   // recorded in it
} capture;

// Calls `work`, and returns the device memory that is taken after it and was free before. CUDA
// says no more about what a graph takes; memory that others take meanwhile is counted too.
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

void spoil_capture(const char* words) noexcept {
  if (!capture.stream || capture.spoilt) return;
  capture.spoilt = true;
  try {
    capture.words = words;
  } catch (const std::bad_alloc&) {
    capture.words.clear();
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
  if (!holds(capture.events, event)) fail("await: the event is none of the capture");
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
    cudaGraph_t noted = nullptr;
    // Ends the capture in any case. Whatever spoilt it made a call fail before, which says more.
    const cudaError_t status = cudaStreamEndCapture(stream, &noted);
    capture.stream = nullptr;
    auto graph = std::make_unique<Graph>();
    graph->noted = noted;
    if (capture.spoilt) {
      cudaGetLastError();
      fail("the capture was spoilt: {}", capture.words);
    }
    check(status, "cudaStreamEndCapture");
    BRRR_CALL(cudaGraphGetNodes, graph->noted, nullptr, nodes);
    *g = graph.release();
  });
}

Failure upload(Graph* g, Stream* s, bool* done, size_t* bytes) {
  *done = false;
  return on_device([&] {
    g->bytes += memory_taken([&] {
      if (!g->exec) {
        const cudaError_t status = cudaGraphInstantiate(&g->exec, g->noted, 0ull);
        if (status != cudaSuccess) g->exec = nullptr;
        if (!enough(status, "cudaGraphInstantiate")) return;
        BRRR_CALL(cudaGraphDestroy, std::exchange(g->noted, nullptr));
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

// Launches that have not finished yet keep what they need.
Failure release_graph(Graph* g) {
  return on_device([&] {
    const cudaGraphExec_t exec = std::exchange(g->exec, nullptr);
    delete g;
    if (exec) BRRR_CALL(cudaGraphExecDestroy, exec);
  });
}

}  // namespace brrr::cuda
