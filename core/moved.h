#pragma once
// Objects that are never copied, temporary values of variables, and objects that throw when they
// are used after they have been moved from.

#include <string>
#include <type_traits>
#include <utility>

#include "core/error.h"

namespace brrr {

/// Base of classes that are neither copied nor moved.
struct NotCopied {
  NotCopied() = default;
  NotCopied(const NotCopied&) = delete;
  NotCopied& operator=(const NotCopied&) = delete;
};

/// Sets a variable of its thread to another value while it lives.
template <class T> class Held : NotCopied {
 public:
  Held(T& variable, std::type_identity_t<T> value)
      : variable_(variable), before_(std::exchange(variable, value)) {}
  ~Held() { variable_ = before_; }

 private:
  T& variable_;
  const T before_;
};

/// Throws brrr::Error: an object of kind `what` was used after it had been moved from.
[[noreturn, gnu::noinline, gnu::cold]] inline void moved_from(const char* what) {
  throw Error(std::string(what) +
              ": this object has been moved from and is empty; use the one that it was moved to, "
              "or assign another to it");
}

/// A member that knows whether its object, of kind `what`, has been moved from.
class MovedMark {
 public:
  explicit MovedMark(const char* what) : what_(what) {}
  MovedMark(const MovedMark&) = default;
  MovedMark& operator=(const MovedMark&) = default;
  MovedMark(MovedMark&& o) noexcept : what_(o.what_), moved_(std::exchange(o.moved_, true)) {}
  MovedMark& operator=(MovedMark&& o) noexcept {
    moved_ = std::exchange(o.moved_, true);
    return *this;
  }
  /// Throws brrr::Error if it has been moved from.
  void check() const {
    if (moved_) [[unlikely]]
      moved_from(what_);
  }
  /// `member` of its object, after check().
  template <class T> const T& checked(const T& member) const {
    check();
    return member;
  }

 private:
  const char* what_;
  bool moved_ = false;
};

}  // namespace brrr
