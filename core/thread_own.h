#pragma once

#include <utility>

namespace brrr {

/// The thread's own T, created at its first use. It is destroyed with the thread's other objects;
/// some of these, or static objects, may compute in their destructors after it: then another T is
/// created, and never destroyed.
template <class T> T& thread_own() {
  static constinit thread_local T* own = nullptr;
  struct Closer {
    ~Closer() { delete std::exchange(own, nullptr); }
  };
  if (!own) [[unlikely]] {
    own = new T;
    static thread_local const Closer closer;
    static_cast<void>(closer);
  }
  return *own;
}

}  // namespace brrr
