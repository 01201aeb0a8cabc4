#include "tests/emulator/ptx_shadow.h"

#include <algorithm>
#include <bit>

namespace brrr::emulator::ptx {

namespace {

// Half a gigabyte of shadow. Pages that a launch touches beyond this many are not checked.
constexpr size_t most_pages = 50'000;

enum Flag : uint8_t {
  many_lanes = 1,
  many_warps = 2,
  many_blocks = 4,
  not_coherent = 8,
  strong = Access::strong
};

// Two volatile accesses do not race with each other.
bool both_strong(const Access& a, const Access& b) { return a.flags & b.flags & strong; }

bool one_warp(const Access& a, const Access& b) { return a.thread / 32 == b.thread / 32; }

// Whether a barrier orders `before` and `me`, accesses of one block.
bool ordered(const Access& before, const Access& me) {
  return one_warp(before, me) ? before.warp_epoch != me.warp_epoch
                              : before.block_epoch != me.block_epoch;
}

// A cell's readers are recorded as the last one and flags about the others.
void record_reader(Access& r, const Access& me, uint32_t first, bool read_only) {
  uint8_t flags = me.flags;
  if (r.block >= first) {
    if (me.flags & strong && !(r.flags & strong)) return;  // Weak readers are the ones that race.
    flags |= r.flags & (many_blocks | not_coherent);
    if (r.block != me.block) {
      flags |= many_blocks;
    } else if (r.block_epoch == me.block_epoch) {
      flags |= r.flags & many_warps;
      if (!one_warp(r, me)) {
        flags |= many_warps;
      } else if (r.warp_epoch == me.warp_epoch) {
        flags |= r.flags & many_lanes;
        if (r.thread != me.thread) flags |= many_lanes;
      }
    }
  }
  if (read_only) flags |= not_coherent;
  r = me;
  r.flags = flags;
}

// Whether a recorded reader is not ordered before the write `me`.
bool still_reads(const Access& r, const Access& me) {
  if (r.block != me.block || r.flags & many_blocks) return true;
  if (r.block_epoch != me.block_epoch) return false;
  if (r.flags & many_warps || !one_warp(r, me)) return true;
  return r.warp_epoch == me.warp_epoch && (r.flags & many_lanes || r.thread != me.thread);
}

}  // namespace

Shadow::Page* Shadow::page(uint64_t number) {
  if (number == last_number_) return last_;
  auto it = pages_.find(number);
  if (it == pages_.end()) {
    if (pages_.size() >= most_pages) return nullptr;
    auto& found = pages_[number];
    found = std::make_unique<Page>();
    found->shift = static_cast<uint32_t>(std::countr_zero(most_));
    found->cells.resize(page_bytes >> found->shift);
    it = pages_.find(number);
  }
  last_number_ = number;
  last_ = it->second.get();
  return last_;
}

void Shadow::trim() {
  if (pages_.size() < most_pages / 2) return;
  pages_.clear();
  last_number_ = ~uint64_t{0};
}

template <class F> const char* Shadow::visit(uint64_t at, uint32_t bytes, F f) {
  const auto fits = static_cast<uint32_t>(std::countr_zero(at | bytes | page_bytes));
  while (bytes > 0) {
    Page* const found = page(at / page_bytes);
    if (!found) return nullptr;
    Page& p = *found;
    if (p.shift > fits) {
      std::vector<Cell> finer(page_bytes >> fits);
      for (size_t k = 0; k < finer.size(); ++k) finer[k] = p.cells[k >> (p.shift - fits)];
      p.cells = std::move(finer);
      p.shift = fits;
    }
    const uint32_t step = 1u << p.shift;
    const auto in_page = static_cast<uint32_t>(at % page_bytes);
    const uint32_t here = std::min(bytes, page_bytes - in_page);
    for (uint32_t k = 0; k < here; k += step) {
      if (const char* error = f(p.cells[(in_page + k) >> p.shift])) return error;
    }
    at += here;
    bytes -= here;
  }
  return nullptr;
}

const char* Shadow::read(uint64_t at, uint32_t bytes, const Access& me, uint32_t first,
                         bool read_only, Access* other) {
  return visit(at, bytes, [&](Cell& cell) -> const char* {
    const Access& w = cell.writer;
    if (w.block >= first) {
      *other = w;
      if (both_strong(w, me)) return nullptr;
      if (read_only) return "reads by ld.global.nc what this launch writes";
      if (w.block != me.block) return "reads what another block writes";
      if (w.thread != me.thread && !ordered(w, me)) {
        return "reads, with no barrier between, what another thread has written";
      }
    }
    record_reader(cell.reader, me, first, read_only);
    return nullptr;
  });
}

const char* Shadow::write(uint64_t at, uint32_t bytes, const Access& me, uint32_t first, bool same,
                          Access* other) {
  return visit(at, bytes, [&](Cell& cell) -> const char* {
    const Access &w = cell.writer, &r = cell.reader;
    if (r.block >= first && !both_strong(r, me)) {
      *other = r;
      if (r.flags & not_coherent) return "writes what this launch reads by ld.global.nc";
      if (still_reads(r, me)) {
        return r.block != me.block || r.flags & many_blocks
                   ? "writes what another block reads"
                   : "writes, with no barrier between, what another thread has read";
      }
    }
    if (w.block >= first && !same && !both_strong(w, me)) {
      *other = w;
      if (w.block != me.block) return "writes other bytes than another block at the same place";
      if (w.thread != me.thread && !ordered(w, me)) {
        return "writes, with no barrier between, other bytes than another thread has written";
      }
    }
    cell.writer = me;
    return nullptr;
  });
}

bool Shadow::written(uint64_t at, uint32_t bytes, uint32_t block) {
  const char none[] = "none";
  return !visit(at, bytes, [&](Cell& cell) -> const char* {
    return cell.writer.block == block ? nullptr : none;
  });
}

}  // namespace brrr::emulator::ptx
