#pragma once
// Extracts the part of the vocabulary that a kernel uses: parsing all of it takes a compiler longer
// than compiling a small kernel (NVRTC: 18 of 53 ms; an empty program takes 20).

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/moved.h"

namespace brrr::jit {

/// C++ text laid out like ops/vocabulary/, cut into parts: a definition is a part and ends with the
/// line that closes its braces; so is a preprocessor directive or a macro call that begins a line.
class Vocabulary : NotCopied {
 public:
  /// `text` must outlive the object.
  explicit Vocabulary(std::string_view text);
  /// The definitions of all names that `kernels` uses (every overload and specialisation) and, in
  /// turn, of the names they use, in their order and namespaces here; conditionals (#if) stay.
  std::string excerpt(std::string_view kernels) const;

 private:
  struct Part {
    std::string_view text;
    std::vector<std::string_view> uses;  // Names it uses that a part of the vocabulary defines.
    bool always;                         // Defines no name (namespace, #if): in every excerpt.
  };
  std::vector<Part> parts_;
  std::unordered_map<std::string_view, std::vector<uint32_t>> defined_;  // Name to part indices.
};

}  // namespace brrr::jit
