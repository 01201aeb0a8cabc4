#pragma once
// Small blocks that no thread's list holds: carved from 2 MB chunks, kept by size class. Not
// thread-safe: the allocator's lock guards it.
#include "backends/cpu/allocator.h"
#include "backends/cpu/page_heap.h"

namespace brrr::cpu::detail {

class ChunkHeap {
 public:
  /// A block of class c, or nullptr when the system refuses memory.
  FreeBlock* take(int c, SystemUse& use) noexcept;
  /// Adds the chain from `first` to `last`, all of class c.
  void push(int c, FreeBlock* first, FreeBlock* last) noexcept;
  /// Unmaps the chunks whose blocks have all come back.
  void trim(SystemUse& use) noexcept;

 private:
  // At the start of each chunk; tells when all of it is free again.
  struct alignas(kSmallUnit) Chunk {
    Chunk* next;
    size_t carved, free;
  };

  FreeBlock* carve(int c) noexcept;
  static Chunk* chunk_of(const void* block) noexcept;

  FreeBlock* lists_[kSmallClasses] = {};
  Chunk* chunks_ = nullptr;  // the newest, from which blocks are carved, comes first
  std::byte *bump_ = nullptr, *end_ = nullptr;
};

}  // namespace brrr::cpu::detail
