#pragma once
// The parts of driver.h about captures and graphs, and the events that order streams.

#include "backends/cuda/driver.h"

namespace brrr::emulator {

cuda::Failure record(cuda::Event* e, cuda::Stream* s);
cuda::Failure await(cuda::Stream* s, cuda::Event* e);
cuda::Failure begin_capture(cuda::Stream* s);
cuda::Failure end_capture(cuda::Stream* s, cuda::Graph** g, size_t* nodes);
cuda::Failure upload(cuda::Graph* g, cuda::Stream* s, bool* done, size_t* bytes);
cuda::Failure launch_graph(cuda::Graph* g, cuda::Stream* s);
cuda::Failure release_graph(cuda::Graph* g);

}  // namespace brrr::emulator
