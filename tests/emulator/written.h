#pragma once
// Which bytes of device memory have been written, for the PTX interpreter.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>

namespace brrr::emulator {

class Marks {
 public:
  void set(uintptr_t at, size_t bytes, bool value);
  /// Whether all of the bytes are marked.
  bool all(uintptr_t at, size_t bytes) const;

 private:
  static constexpr size_t page_bytes = 4096;
  using Page = std::array<uint64_t, page_bytes / 64>;
  Page* find(uintptr_t number) const;

  std::unordered_map<uintptr_t, std::unique_ptr<Page>> pages_;
  mutable uintptr_t last_number_ = 0;
  mutable Page* last_ = nullptr;
};

}  // namespace brrr::emulator
