#pragma once
// Memory of the emulated device and pinned memory of the host.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "tests/emulator/written.h"

namespace brrr::emulator {

constexpr unsigned char poison = 0xff;  // a NaN of every float type

/// A red zone of bytes that must not be written is on each side of an allocation.
constexpr size_t red_zone_bytes = 256;
void draw_red_zone(char* at);
/// The range [from, to) of bytes written, counted from `at`; both are 0 when none was.
struct Written {
  size_t from, to;
};
Written check_red_zone(const char* at);

class Memory {
 public:
  enum class Kind { Device, Pinned };

  /// Null when out of memory.
  void* allocate(size_t bytes, Kind kind);
  /// Fails for a pointer not from allocate() and, after releasing it, for a violated red zone.
  void release(void* p, Kind kind);

  /// The arena's address range; grow_arena makes its first `bytes` usable, false if out of memory.
  void* arena();
  bool grow_arena(size_t bytes);

  /// Fails if a red zone was written. Redraws it, so that each violation is reported once.
  void check();

  /// Whether the whole range is in one allocation of that kind.
  bool holds(const void* p, size_t bytes, Kind kind) const;
  /// Begin and end of the allocation that contains `p`; {0, 0} if none does.
  std::pair<uintptr_t, uintptr_t> range(const void* p) const;
  /// Fails unless the whole range is device memory. `what` names it in the message.
  void expect_device(const char* what, const void* p, size_t bytes) const;
  /// Fails if any part of the range is device memory, or if only a part is pinned.
  void expect_host(const char* what, const void* p, size_t bytes) const;

  Marks marks;  // the bytes that were written; pinned memory counts as written

  size_t total = 0, used = 0;  // device memory in bytes, programs and graphs included
  size_t left() const { return total - std::min(total, used); }

 private:
  struct Allocation {
    size_t bytes;
    Kind kind;
  };
  using Iterator = std::map<uintptr_t, Allocation>::const_iterator;
  Iterator find(const void* p) const;
  std::string violation(Iterator it);

  std::map<uintptr_t, Allocation> allocations_;  // by address
  char* arena_ = nullptr;
};

}  // namespace brrr::emulator
