#pragma once
// What a kernel needs of the text that every kernel may use: compilers take longer to read all of
// that than to make a small kernel (NVRTC 18 of 53 ms, 20 of which an empty program takes).

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/moved.h"

namespace brrr::jit {

/// C++ text laid out as ops/vocabulary/ is, by definitions: a part ends with the line that closes
/// what its lines have opened; a directive and a macro's call at the beginning of a line are parts.
class Vocabulary : NotCopied {
 public:
  /// `text` must outlive it.
  explicit Vocabulary(std::string_view text);
  /// The definitions of whatever `kernels` names, all overloads and specialisations, with what
  /// these name in turn, in the order and the namespaces that they have here; conditions stay.
  std::string excerpt(std::string_view kernels) const;

 private:
  struct Part {
    std::string_view text;
    std::vector<std::string_view> uses;  // What is defined here or in others.
    bool always;                         // It defines nothing.
  };
  std::vector<Part> parts_;
  std::unordered_map<std::string_view, std::vector<uint32_t>> defined_;  // In which parts.
};

}  // namespace brrr::jit
