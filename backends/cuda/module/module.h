#pragma once
// What the parts of the module offer each other.

#include "backends/cuda/module/status.h"

namespace brrr::cuda {

/// The thread's next calls act on the device that `Driver::open` has opened.
void enter();
int open_device();
cudaStream_t stream_of(Stream* s);
/// A function of the driver, which the module does not link, as of a version of CUDA; null where
/// the driver is older.
void* find_in_driver(const char* name, int version);
/// One that a pointer to it is made from: null where a driver is older than `since`, if that is
/// not what all drivers are; else it fails where there is none.
struct DriverFunction {
  static constexpr int kAll = 12000;
  const char* name;
  int since = kAll;
  template <class F> operator F*() const {  // NOLINT(google-explicit-constructor)
    void* const found = find_in_driver(name, since);
    if (!found && since == kAll) fail("the NVIDIA driver has no function {}", name);
    return reinterpret_cast<F*>(found);
  }
};

/// What a thread may not ask for while it captures fails in words, before CUDA sees it.
void refuse_in_capture(const char* call);
void refuse_other_stream(cudaStream_t stream);
void refuse_pageable(const void* host);
/// A capture of this thread has recorded the event; a stream that is about to await one belongs to
/// the capture from then on.
void note_event(cudaEvent_t event);
void admit_stream(cudaStream_t stream, cudaEvent_t event);

/// The versions that have to fit each other, for the words of a failure.
std::string versions(int major, int minor);

/// Does `work` on the open device, which a thread that captures may not.
template <class Work> Failure on_device(Work work, const char* call = __builtin_FUNCTION()) {
  return guarded([&] {
    refuse_in_capture(call);
    enter();
    work();
  });
}

/// Queues by `work` on `s`, which a capture of this thread notes.
template <class Work> Failure in_stream(Stream* s, Work work) {
  return guarded([&] {
    enter();
    const cudaStream_t stream = stream_of(s);
    refuse_other_stream(stream);
    work(stream);
  });
}

Failure begin_capture(Stream* s);
Failure end_capture(Stream* s, Graph** g, size_t* nodes);
Failure upload(Graph* g, Stream* s, bool* done);
Failure launch_graph(Graph* g, Stream* s);
Failure release_graph(Graph* g);
Failure graph_bytes(Graph* g, size_t* bytes);

Failure arena(size_t bytes, void** begin, bool* done);

Failure compile(const char* source, const char* name, int major, int minor, void** image,
                size_t* bytes);
void release_image(void* image);
int compiler_version();

Failure choose(const GemmShape* shape, size_t workspace_bytes, Gemm** gemm);
Failure multiply(Gemm* gemm, const void* a, const void* b, void* c, void* workspace,
                 size_t workspace_bytes, Stream* s);

}  // namespace brrr::cuda
