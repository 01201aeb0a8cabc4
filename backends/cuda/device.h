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
  Stream* capture;  ///< ...but for what is noted by a capture,
  /// and for what is done beside that or this: exchanges with other processes (link.cpp).
  Stream *compute_beside = nullptr, *capture_beside = nullptr;
  Counters counters;
  /// The one for this thread at present.
  Stream* stream() const {
    if (beside) return capturing ? capture_beside : compute_beside;
    return capturing ? capture : compute;
  }
  inline static thread_local uint64_t capturing = 0;  ///< The number of this thread's capture.
  inline static thread_local bool beside = false;
};

/// The device, opened at the first call. Throws brrr::Error with what is missing: the module, a
/// driver, a GPU. Later calls give the same answer.
OpenDevice& device();

/// Throws "cuda: <what>: <failure>" if there is one.
void check(Failure failure, const char* what);

/// The stream has done everything queued so far. Throws for what went wrong there.
void synchronize();
/// The calling thread waits for the event.
void wait_for(Event* e, const char* what);
/// For how long the thread that began to wait last has been waiting; 0: it is not.
double waited_s();

}  // namespace brrr::cuda
