#pragma once
// The device behind the boundary: opened once, with one stream for all work.

#include <atomic>
#include <mutex>
#include <vector>

#include "backends/cuda/driver.h"

namespace brrr::cuda {

struct OpenDevice {
  const Driver* driver;
  Properties properties{};
  Stream* compute = nullptr;  ///< All work is queued here...
  Stream* capture = nullptr;  ///< ...but for what is noted by a capture,
  /// and for what is done beside that or this: exchanges with other processes (link.cpp).
  Stream *compute_beside = nullptr, *capture_beside = nullptr;
  std::atomic<uint64_t> waits{0};  ///< How often a thread has waited for it.
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

/// Queues a copy; throws as check() does.
void queue_copy(void* to, const void* from, size_t bytes, Way way, Stream* s);
/// The stream has done everything queued so far. Throws for what went wrong there.
void synchronize();
/// The calling thread waits for the event.
void wait_for(Event* e, const char* what);

/// The process's own T, made at its first use. Never destroyed: what ends last may still ask for
/// it.
template <class T> T& process_own() {
  static T& own = *new T;
  return own;
}

/// What a driver makes slowly, kept for whoever asks next.
template <class T> class Spares {
 public:
  /// Null: there is none.
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
