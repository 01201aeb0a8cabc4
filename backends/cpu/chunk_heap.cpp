#include "backends/cpu/chunk_heap.h"

#include <new>

namespace brrr::cpu::detail {

void ChunkHeap::push(int c, FreeBlock* first, FreeBlock* last) noexcept {
  last->next = lists_[c];
  lists_[c] = first;
}

FreeBlock* ChunkHeap::carve(int c) noexcept {
  const size_t size = class_bytes(c);
  if (static_cast<size_t>(end_ - bump_) < size) return nullptr;
  auto* block = new (bump_) FreeBlock{};
  bump_ += size;
  chunks_->carved += size;
  return block;
}

FreeBlock* ChunkHeap::take(int c, SystemUse& use) noexcept {
  if (FreeBlock* block = lists_[c]) {
    lists_[c] = block->next;
    return block;
  }
  if (FreeBlock* block = carve(c)) return block;
  std::byte* memory = map_huge(kHugePage, 0, use);
  if (!memory) return nullptr;
  // What is left of the old chunk becomes blocks of the largest classes that fit.
  for (int rest = kSmallClasses - 1; rest >= 0; --rest) {
    while (FreeBlock* block = carve(rest)) push(rest, block, block);
  }
  chunks_ = new (memory) Chunk{chunks_, 0, 0};
  bump_ = memory + sizeof(Chunk);
  end_ = memory + kHugePage;
  return carve(c);
}

ChunkHeap::Chunk* ChunkHeap::chunk_of(const void* block) noexcept {
  return reinterpret_cast<Chunk*>(reinterpret_cast<uintptr_t>(block) & ~(kHugePage - 1));
}

void ChunkHeap::trim(SystemUse& use) noexcept {
  for (Chunk* chunk = chunks_; chunk; chunk = chunk->next) chunk->free = 0;
  for (int c = 0; c < kSmallClasses; ++c) {
    for (FreeBlock* b = lists_[c]; b; b = b->next) chunk_of(b)->free += class_bytes(c);
  }
  const auto unused = [](const Chunk* chunk) { return chunk->free == chunk->carved; };
  for (FreeBlock*& list : lists_) {
    for (FreeBlock** link = &list; *link;) {
      if (unused(chunk_of(*link))) {
        *link = (*link)->next;
      } else {
        link = &(*link)->next;
      }
    }
  }
  for (Chunk** link = &chunks_; *link;) {
    Chunk* chunk = *link;
    if (!unused(chunk)) {
      link = &chunk->next;
      continue;
    }
    *link = chunk->next;
    auto* begin = reinterpret_cast<std::byte*>(chunk);
    if (end_ == begin + kHugePage) bump_ = end_ = nullptr;
    unmap_huge(begin, kHugePage, 0, use);
  }
}

}  // namespace brrr::cpu::detail
