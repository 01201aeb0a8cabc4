#pragma once

#include <utility>

namespace brrr {

/// The thread's own T, made at its first use. It ends with the thread's other objects, some of
/// which may compute in their destructors after it, as those of static objects may: then one is
/// made anew, and stays.
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
