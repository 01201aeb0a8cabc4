#pragma once
// Captured work: what core's GraphBackend asks of this device.

#include "core/backend.h"

namespace brrr::cuda {

const GraphBackend& graph_backend();

/// Built kernels of a recorded step: build, symbol and unload of the Backend.
KernelModule* build(const std::string& source, BuildReport& report);
void* symbol(KernelModule* m, const char* name);
void unload(KernelModule* m) noexcept;

}  // namespace brrr::cuda
