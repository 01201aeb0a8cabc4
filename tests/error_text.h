#pragma once
// Used by nearly every case: an error's message, a substring test, infinity.

#include <functional>
#include <limits>
#include <string>

#include "core/error.h"

namespace brrr::test {

inline constexpr double kInf = std::numeric_limits<double>::infinity();

/// The message of the brrr::Error that f throws, "" if it throws none.
inline std::string error_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != text.npos;
}

}  // namespace brrr::test
