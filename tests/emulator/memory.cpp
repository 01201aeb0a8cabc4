#include "tests/emulator/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>

#include "core/check.h"

namespace brrr::emulator {

namespace {

constexpr size_t alignment = 256;  // as CUDA guarantees
static_assert(red_zone_bytes % alignment == 0);

// NaN as float, bfloat16 and float16, of bytes that programs are unlikely to write.
const std::array<char, red_zone_bytes> pattern = [] {
  std::array<char, red_zone_bytes> bytes;
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i % 2 ? 0xff : 0xb1);
  return bytes;
}();

const char* name(Memory::Kind kind) { return kind == Memory::Kind::Device ? "device" : "pinned"; }

// The arena grows in steps of this many bytes; on a GPU it is 2 MiB.
constexpr size_t chunk = 64 << 10;

size_t round_up(size_t bytes, size_t step = alignment) { return (bytes + step - 1) / step * step; }

// Makes the first `bytes` of a range accessible, and the red zones on both sides.
void open_range(char* range, size_t bytes) {
  const size_t accessible = chunk + round_up(bytes + red_zone_bytes, chunk);
  BRRR_CHECK(mprotect(range - chunk, accessible, PROT_READ | PROT_WRITE) == 0,
             "map: no {} bytes of host memory", accessible);
}

}  // namespace

void draw_red_zone(char* at) { std::memcpy(at, pattern.data(), red_zone_bytes); }

Written check_red_zone(const char* at) {
  if (std::memcmp(at, pattern.data(), red_zone_bytes) == 0) return {0, 0};
  Written w{red_zone_bytes, 0};
  for (size_t i = 0; i < red_zone_bytes; ++i) {
    if (at[i] == pattern[i]) continue;
    w = {std::min(w.from, i), i + 1};
  }
  return w;
}

void* Memory::allocate(size_t bytes, Kind kind) {
  BRRR_CHECK(bytes > 0, "allocate: 0 bytes of {} memory", name(kind));
  if (kind == Kind::Device && bytes > left()) return nullptr;
  // The second red zone begins at the very next byte after the allocation.
  auto* zone = static_cast<char*>(
      std::aligned_alloc(alignment, red_zone_bytes + round_up(bytes + red_zone_bytes)));
  if (!zone) return nullptr;
  char* p = zone + red_zone_bytes;
  draw_red_zone(zone);
  std::memset(p, poison, bytes);
  draw_red_zone(p + bytes);
  allocations_.emplace(reinterpret_cast<uintptr_t>(p), Allocation{bytes, kind});
  marks.set(reinterpret_cast<uintptr_t>(p), bytes, kind == Kind::Pinned);
  if (kind == Kind::Device) used += bytes;
  return p;
}

void Memory::release(void* p, Kind kind) {
  const auto it = allocations_.find(reinterpret_cast<uintptr_t>(p));
  BRRR_CHECK(it != allocations_.end() && it->second.kind == kind && p != arena_,
             "release: {} is no {} memory, or was released before", p, name(kind));
  const std::string error = violation(it);
  if (kind == Kind::Device) used -= it->second.bytes;
  allocations_.erase(it);
  std::free(static_cast<char*>(p) - red_zone_bytes);
  BRRR_CHECK(error.empty(), "{}", error);
}

// Reserves an extra chunk on each side for the red zones; the rear one moves with the end.
void* Memory::arena() {
  if (arena_) return arena_;
  constexpr size_t addresses = size_t{1} << 36;
  void* zone = mmap(nullptr, chunk + addresses + chunk, PROT_NONE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  BRRR_CHECK(zone != MAP_FAILED, "arena: no room for {} addresses", addresses);
  arena_ = static_cast<char*>(zone) + chunk;
  open_range(arena_, 0);
  draw_red_zone(arena_ - red_zone_bytes);
  draw_red_zone(arena_);
  allocations_.emplace(reinterpret_cast<uintptr_t>(arena_), Allocation{0, Kind::Device});
  return arena_;
}

bool Memory::grow_arena(size_t bytes) {
  const auto it = allocations_.find(reinterpret_cast<uintptr_t>(arena()));
  const std::string error = violation(it);
  BRRR_CHECK(error.empty(), "{}", error);
  size_t& mapped = it->second.bytes;
  if (bytes <= mapped) return true;
  const size_t more = round_up(bytes, chunk) - round_up(mapped, chunk);
  if (more > left()) return false;
  open_range(arena_, bytes);
  std::memset(arena_ + mapped, poison, bytes - mapped);
  draw_red_zone(arena_ + bytes);
  used += more;
  mapped = bytes;
  return true;
}

void Memory::check() {
  std::string error;
  for (auto it = allocations_.begin(); it != allocations_.end(); ++it) {
    if (std::string w = violation(it); !w.empty()) error += (error.empty() ? "" : "; ") + w;
  }
  BRRR_CHECK(error.empty(), "{}", error);
}

std::string Memory::violation(Iterator it) {
  char* p = reinterpret_cast<char*>(it->first);
  const auto [bytes, kind] = it->second;
  std::string where;
  if (const Written w = check_red_zone(p - red_zone_bytes); w.to > 0) {
    where = fmt::format("bytes -{} to -{}", red_zone_bytes - w.from, red_zone_bytes + 1 - w.to);
    draw_red_zone(p - red_zone_bytes);
  }
  if (const Written w = check_red_zone(p + bytes); w.to > 0) {
    where += fmt::format("{}bytes {} to {}", where.empty() ? "" : " and ", bytes + w.from,
                         bytes + w.to - 1);
    draw_red_zone(p + bytes);
  }
  if (where.empty()) return where;
  return fmt::format("{} of the {} allocation of {} bytes at {} were written, which are outside it",
                     where, name(kind), bytes, static_cast<void*>(p));
}

Memory::Iterator Memory::find(const void* p) const {
  auto it = allocations_.upper_bound(reinterpret_cast<uintptr_t>(p));
  if (it == allocations_.begin()) return allocations_.end();
  --it;
  const bool inside = reinterpret_cast<uintptr_t>(p) - it->first < it->second.bytes;
  return inside ? it : allocations_.end();
}

bool Memory::holds(const void* p, size_t bytes, Kind kind) const {
  const auto it = find(p);
  if (it == allocations_.end() || it->second.kind != kind) return false;
  return bytes <= it->second.bytes - (reinterpret_cast<uintptr_t>(p) - it->first);
}

std::pair<uintptr_t, uintptr_t> Memory::range(const void* p) const {
  const auto it = find(p);
  if (it == allocations_.end()) return {0, 0};
  return {it->first, it->first + it->second.bytes};
}

void Memory::expect_device(const char* what, const void* p, size_t bytes) const {
  BRRR_CHECK(holds(p, bytes, Kind::Device), "{}: {} bytes at {} are not within device memory", what,
             bytes, p);
}

void Memory::expect_host(const char* what, const void* p, size_t bytes) const {
  // The last allocation that begins before the range's end is the only one that may overlap it.
  auto it = allocations_.lower_bound(reinterpret_cast<uintptr_t>(p) + bytes);
  if (it == allocations_.begin()) return;
  --it;
  const bool overlaps = it->first + it->second.bytes > reinterpret_cast<uintptr_t>(p);
  BRRR_CHECK(!overlaps || holds(p, bytes, Kind::Pinned),
             "{}: {} bytes at {} are not host memory, or pinned only in part", what, bytes, p);
}

}  // namespace brrr::emulator
