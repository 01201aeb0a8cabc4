#include "tests/emulator/written.h"

#include <algorithm>

namespace brrr::emulator {

namespace {

// A mask of `count` bits from bit `first` on.
uint64_t bits(size_t first, size_t count) {
  return (count == 64 ? ~uint64_t{0} : (uint64_t{1} << count) - 1) << first;
}

}  // namespace

Marks::Page* Marks::find(uintptr_t number) const {
  if (last_ && number == last_number_) return last_;
  const auto it = pages_.find(number);
  if (it == pages_.end()) return nullptr;
  last_number_ = number;
  return last_ = it->second.get();
}

void Marks::set(uintptr_t at, size_t bytes, bool value) {
  while (bytes > 0) {
    const uintptr_t number = at / page_bytes;
    const size_t in_page = at % page_bytes, here = std::min(bytes, page_bytes - in_page);
    Page* page = find(number);
    if (!page && value) page = (pages_[number] = std::make_unique<Page>()).get();
    for (size_t k = in_page, end = in_page + here; page && k < end;) {
      const size_t count = std::min(end - k, 64 - k % 64);
      uint64_t& word = (*page)[k / 64];
      word = value ? word | bits(k % 64, count) : word & ~bits(k % 64, count);
      k += count;
    }
    at += here;
    bytes -= here;
  }
}

bool Marks::all(uintptr_t at, size_t bytes) const {
  while (bytes > 0) {
    const size_t in_word = at % 64, here = std::min(bytes, 64 - in_word);
    const Page* page = find(at / page_bytes);
    const uint64_t wanted = bits(in_word, here);
    if (!page || ((*page)[at % page_bytes / 64] & wanted) != wanted) return false;
    at += here;
    bytes -= here;
  }
  return true;
}

}  // namespace brrr::emulator
