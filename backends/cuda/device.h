#pragma once
// The device behind the boundary, opened once, and its streams.

#include <atomic>
#include <mutex>
#include <vector>

#include "backends/cuda/driver.h"

namespace brrr::cuda {

struct OpenDevice {
  const Driver* driver;
  Properties properties{};
  Stream* compute = nullptr;  ///< The main stream.
  Stream* capture = nullptr;  ///< Takes its place during a capture.
  /// A second stream for each of the two, for exchanges with other processes (link.cpp).
  Stream *compute_beside = nullptr, *capture_beside = nullptr;
  std::atomic<uint64_t> waits{0};  ///< How often a thread has blocked on the device.
  /// The stream on which this thread queues its work now.
  Stream* stream() const {
    if (beside) return capturing ? capture_beside : compute_beside;
    return capturing ? capture : compute;
  }
  inline static thread_local uint64_t capturing = 0;  ///< The id of this thread's capture; 0: none.
  inline static thread_local bool beside = false;
};

/// The device, opened by the first call. Throws brrr::Error if the module, a driver or a GPU is
/// missing; later calls throw the same error.
OpenDevice& device();

/// Throws "cuda: <what>: <failure>" if there is one.
void check(Failure failure, const char* what);

/// Queues a copy; throws as check() does.
void queue_copy(void* to, const void* from, size_t bytes, Way way, Stream* s);
/// Waits until the compute stream has run everything queued so far. Throws its errors.
void synchronize();
/// Blocks the calling thread until the event is reached.
void wait_for(Event* e, const char* what);

/// The process's singleton T, made on first use. Never destroyed: static destructors may still use
/// it.
template <class T> T& process_own() {
  static T& own = *new T;
  return own;
}

/// Keeps driver objects that are slow to create for reuse.
template <class T> class ObjectCache {
 public:
  /// Null if there is none.
  T* take() {
    const std::lock_guard lock(mutex_);
    if (all_.empty()) return nullptr;
    T* const one = all_.back();
    all_.pop_back();
    return one;
  }
  void give(T* one) {
    const std::lock_guard lock(mutex_);
    all_.push_back(one);
  }

 private:
  std::mutex mutex_;
  std::vector<T*> all_;
};

}  // namespace brrr::cuda
