#pragma once
// The device behind the boundary: opened once, with one stream for all work.

#include <atomic>
#include <string>

#include "backends/cuda/driver.h"

namespace brrr::cuda {

/// Counts of what the process has asked of the device.
struct Counters {
  std::atomic<uint64_t> launches{0}, graph_launches{0}, synchronisations{0};
};

struct OpenDevice {
  const Driver* driver;
  const Tools* tools;
  const char* module;  ///< "cuda", "emulator".
  Properties properties;
  Stream* compute;  ///< All work is queued here...
  Stream* capture;  ///< ...but for what is noted by a capture.
  Counters counters;
  /// The one for this thread at present.
  Stream* stream() const { return capturing ? capture : compute; }
  inline static thread_local bool capturing = false;
};

/// The device, opened at the first call. Throws brrr::Error with what is missing: the module, a
/// driver, a GPU. Later calls give the same answer.
OpenDevice& device();

/// Throws "cuda: <what>: <failure>" if there is one.
void check(Failure failure, const char* what);

/// The stream has done everything queued so far. Throws for what went wrong there.
void synchronize();

}  // namespace brrr::cuda
