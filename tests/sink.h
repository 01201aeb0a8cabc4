#pragma once
// A thread that destroys the tensors it is given.

#include <atomic>
#include <deque>
#include <mutex>
#include <thread>

#include "core/tensor.h"

namespace brrr::test {

class Sink {
 public:
  ~Sink() {
    over_ = true;
    thread_.join();
  }
  void give(const Tensor& t) {
    const std::lock_guard lock(mutex_);
    queue_.push_back(t);
  }

 private:
  std::mutex mutex_;
  std::deque<Tensor> queue_;
  std::atomic<bool> over_{false};
  std::thread thread_{[this] {
    while (!over_) {
      Tensor one;
      const std::lock_guard lock(mutex_);
      if (queue_.empty()) continue;
      one = std::move(queue_.front());
      queue_.pop_front();
    }
  }};
};

}  // namespace brrr::test
