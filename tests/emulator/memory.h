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

/// A stretch of bytes that nobody may write: 256 of them lie on each side of an allocation.
constexpr size_t red_zone_bytes = 256;
void draw_red_zone(char* at);
/// The first and the last byte written, plus one, counted from `at`; both 0 when none was.
struct Written {
  size_t from, to;
};
Written look_at_red_zone(const char* at);

class Memory {
 public:
  enum class Kind { Device, Pinned };

  /// Null when there is no room.
  void* allocate(size_t bytes, Kind kind);
  /// Fails for a pointer that allocate() did not give, and, having released it, for a violated red
  /// zone.
  void release(void* p, Kind kind);

  /// Addresses of which `grow_arena` makes the first `bytes` usable; false when there is no room.
  void* arena();
  bool grow_arena(size_t bytes);

  /// Fails when a red zone was written; it is drawn anew, so that this is said once.
  void check();

  /// Whether the whole range lies in one allocation of that kind.
  bool holds(const void* p, size_t bytes, Kind kind) const;
  /// Where the allocation that holds `p` begins and ends; twice 0 where there is none.
  std::pair<uintptr_t, uintptr_t> range(const void* p) const;
  /// Fails unless the whole range is device memory. `what` names it.
  void expect_device(const char* what, const void* p, size_t bytes) const;
  /// Fails if any of the range is device memory, or if it is pinned only in part.
  void expect_host(const char* what, const void* p, size_t bytes) const;

  Marks marks;  // of the bytes that were written; all pinned ones count as such

  size_t total = 0, used = 0;  // of the device, in bytes; programs and graphs are charged here too
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
