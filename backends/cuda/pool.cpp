#include "backends/cuda/pool.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "backends/cuda/device.h"
#include "core/backend.h"

namespace brrr::cuda {

static size_t round_up(size_t n, size_t unit) { return (n + unit - 1) / unit * unit; }

size_t Pool::rounded(size_t bytes) const {
  return round_up(std::max<size_t>(bytes, 1), apart_ ? 1 : kUnit);
}

// Best fit: removes the smallest block that is large enough from its list. With `apart` only a
// block of exactly this size counts; a capture reuses it, otherwise it is returned to the device,
// so that the next allocation is new memory.
Pool::Blocks::iterator Pool::find(size_t bytes) {
  Free& list = free_[bytes > (apart_ ? kSegment : kSmall)];
  const auto it = list.lower_bound({bytes, nullptr});
  if (it == list.end() || (apart_ && it->first != bytes)) return blocks_.end();
  if (apart_ && !held_.on) return release(list, it), blocks_.end();
  const auto block = blocks_.find(it->second);
  list.erase(it);
  return block;
}

Pool::Blocks::iterator Pool::new_segment(size_t bytes) {
  size_t size = bytes <= kSmall ? kSegment : std::max(round_up(bytes, kSegment), 2 * kSegment);
  if (apart_) size = bytes;
  if (size < bytes) return blocks_.end();  // Rounding up overflowed.
  void* p = nullptr;
  check(driver_.allocate(&p, size), "allocate");
  if (!p && size > bytes) {  // The device may still have less than a whole segment.
    size = bytes;
    check(driver_.allocate(&p, size), "allocate");
  }
  if (!p) return blocks_.end();
  auto* at = static_cast<char*>(p);
  stats_.reserved += size;
  return blocks_.insert({at, Block{size, at, size, nullptr}}).first;
}

void* Pool::take(size_t bytes, const char* owner) {
  auto block = blocks_.end();
  const auto any = [&] {  // Worth a second try: trimming merges the blocks of recent_.
    block = find(bytes);
    if (block == blocks_.end()) block = new_segment(bytes);
    return block != blocks_.end();
  };
  if (!any()) {
    trim_locked();
    if (!any()) return nullptr;
  }
  if (const size_t left = block->second.bytes - bytes; left >= kUnit) {
    const auto rest = blocks_.insert({block->first + bytes, block->second}).first;
    rest->second.bytes = left;
    free_of(rest->second).insert({left, rest->first});
    block->second.bytes = bytes;
  }
  block->second.owner = owner;
  return block->first;
}

void* Pool::allocate(size_t requested, const char* owner) {
  const size_t bytes = rounded(requested);
  if (bytes < requested) return nullptr;
  if (held_.on) {
    const auto same = [&](const auto& b) { return b.second == bytes; };
    auto& blocks = held_.here();
    const auto it = std::find_if(blocks.begin(), blocks.end(), same);
    if (it != blocks.end()) {
      void* p = it->first;
      blocks.erase(it);
      return p;
    }
  }
  const std::lock_guard lock(mutex_);
  void* p = nullptr;
  if (!apart_ && bytes <= kSmall && !recent_[bytes / kUnit].empty()) {
    p = recent_[bytes / kUnit].back();
    recent_[bytes / kUnit].pop_back();
  } else {
    p = take(bytes, owner ? owner : "a tensor");
  }
  if (!p) return nullptr;
  stats_.live += bytes;
  stats_.peak = std::max(stats_.peak, stats_.live);
  ++stats_.allocations;
  return p;
}

void Pool::deallocate(void* p, size_t requested) noexcept {
  if (!p) return;
  const size_t bytes = rounded(requested);
  if (held_.on) return held_.here().emplace_back(p, bytes), void();
  const std::lock_guard lock(mutex_);
  stats_.live -= bytes;
  const bool recent = !apart_ && bytes <= kSmall;
  recent ? recent_[bytes / kUnit].push_back(p) : give(static_cast<char*>(p));
}

void Pool::give(char* p) {
  auto block = blocks_.find(p);
  block->second.owner = nullptr;
  Free& list = free_of(block->second);
  // Merges the adjacent blocks a and b, of which one is `block`, if the other is free.
  auto join = [&](Blocks::iterator a, Blocks::iterator b) {
    const Blocks::iterator other = a == block ? b : a;
    if (other->second.owner || other->second.segment != block->second.segment) return;
    list.erase({other->second.bytes, other->first});
    a->second.bytes += b->second.bytes;
    blocks_.erase(b);
    block = a;
  };
  if (const auto next = std::next(block); next != blocks_.end()) join(block, next);
  if (block != blocks_.begin()) join(std::prev(block), block);
  list.insert({block->second.bytes, block->first});
}

void Pool::trim_locked() {
  for (auto& blocks : recent_) {
    for (void* p : blocks) give(static_cast<char*>(p));
    blocks.clear();
  }
  for (Free& list : free_) {
    for (auto it = list.begin(); it != list.end();) {
      const bool whole = it->first == blocks_.at(it->second).segment_bytes;
      it = whole ? release(list, it) : std::next(it);
    }
  }
}

// Queued work may still use the segment: Driver::release waits for the device.
Pool::Free::iterator Pool::release(Free& list, Free::iterator it) {
  check(driver_.release(it->second), "release");
  stats_.reserved -= it->first;
  blocks_.erase(it->second);
  return list.erase(it);
}

thread_local Pool::Held Pool::held_;

std::vector<std::pair<void*, size_t>> Pool::taken() {
  held_.on = false;
  auto all = std::exchange(held_.blocks[0], {});
  for (const auto& block : std::exchange(held_.blocks[1], {})) all.push_back(block);
  return all;
}

void Pool::trim() {
  const std::lock_guard lock(mutex_);
  trim_locked();
}

MemoryStats Pool::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

void Pool::reset_peak() {
  const std::lock_guard lock(mutex_);
  stats_.peak = stats_.live;
}

std::string Pool::describe() const {
  const std::lock_guard lock(mutex_);
  std::set<const char*> cached;
  for (const auto& blocks : recent_) {
    for (void* p : blocks) cached.insert(static_cast<char*>(p));
  }
  Holders holders;
  for (const auto& [at, b] : blocks_) {
    if (b.owner && !cached.count(at)) ++holders[{b.owner, b.bytes}];
  }
  size_t free = 0, total = 0;
  const bool refused = driver_.memory(&free, &total) != nullptr;  // Fails during a capture.
  return fmt::format("{} bytes held by tensors, {} cached{}{}", stats_.live,
                     stats_.reserved - stats_.live,
                     refused ? "" : fmt::format(", {} of the device's {} free", free, total),
                     name_largest(holders));
}

Pool& pool() {
  static Pool& p = *[] {
    const char* const poison = std::getenv("BRRR_POISON");
    return new Pool(*device().driver, poison && *poison && *poison != '0');
  }();
  return p;
}

}  // namespace brrr::cuda
