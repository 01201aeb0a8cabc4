#include "ops/program/cpu.h"

#include <algorithm>
#include <utility>

#include "ops/program/cpu_text.h"

namespace brrr::program {

namespace {

// Bytes re-read by every row up to which the hardware prefetcher keeps up. With 48 KB of L1,
// prefetching takes a fifth longer at 8 KB, and not prefetching up to twice as long at 32 KB; with
// 32 KB of L1, not prefetching takes a sixth longer at 8 KB already. Near prefetches always pay,
// even with nothing re-read.
int64_t reread_limit() { return prefers_near() ? -1 : prefetch_level() == 1 ? 16 << 10 : 4 << 10; }

// A walk over elements.
class Text : public CpuText {
 public:
  using CpuText::CpuText;

  CpuKernel run() {
    choose_prefetched();
    text_ = "(char* const* a, long begin, long end) {\n";
    pointers();
    emit(all(Statement::Never), 1, false);
    const std::vector<int> elements = all(Statement::InRow);
    const int unroll = choose_unroll(elements), inner = ndim_ - 1;
    if (ndim_ == 1) {
      out_.extent = size_[0];
      out_.grain = kGrain;
      loops(elements, "begin", "end", unroll);
    } else {
      out_.extent = 1;
      for (int d = 0; d < inner; ++d) out_.extent *= size_[d];
      out_.unit = size_[inner];
      out_.grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(size_[inner], 1));
      std::set<int> touched;
      for (int w = 0; w < windows(); ++w) {
        if (window(w).touched()) touched.insert(w);
      }
      text_ += "for (long r = begin; r < end; ++r) {\n";
      row_pointers("r", touched);
      emit(all(Statement::WithRow), 1, false);
      loops(elements, "0", std::to_string(size_[inner]), unroll, size_[inner]);
      text_ += "}\n";
    }
    end_body();
    return std::move(out_);
  }

 private:
  // Prefetch streamed loads when other operands are re-read by every row: with 4096 reused weights
  // the hardware prefetcher falls behind.
  void choose_prefetched() {
    int64_t reread = 0;
    for (const Window& w : p_.windows) {
      if (w.loaded && inner_stride(w) != 0 && !streams(w)) reread += p_.bytes_of(w);
    }
    for (int w = 0; w < windows() && streaming_ && reread > reread_limit(); ++w) {
      const Window& x = window(w);
      if (x.in_memory() && inner_stride(w) == 1 && x.loaded && streams(x)) prefetched_.push_back(w);
    }
  }

  // With several streams a near prefetch into L1 is early enough, and prefetching twice delays them
  // (gelu(x w + b) + r, rows of 4096: 5.3 and 4.2 ms for 64 MB).
  void at_body(int unroll) override {
    const Distance one = one_stream_distance();
    const bool several = prefetch_level() == 1 && prefetched_.size() > 1;
    const auto bytes_of = [&](int w) { return 16 * unroll * window(w).item(); };
    // Two loops: a stream's lines before the next stream's page took a twentieth longer.
    for (int w : prefetched_) {
      if (!several)
        prefetch(w, 2, one.second, bytes_of(w));
      else if (prefers_near())
        prefetch_page(w, bytes_of(w));
    }
    const int64_t near_by = !several ? one.used : prefers_near() ? kAhead / 8 : kAhead / 2;
    for (int w : prefetched_) prefetch(w, prefetch_level(), near_by, bytes_of(w));
  }
  // Prefetches `bytes` of a stream, `ahead` bytes ahead.
  void prefetch(int w, int level, int64_t ahead, int64_t bytes) {
    for (int64_t line = 0; line < bytes; line += 64) {
      print("prefetch<{}>((const char*)(p{} + i) + {});\n", level, w, ahead + line);
    }
  }
  // The hardware prefetcher stops at the end of a page: once a page, half a page before its end,
  // prefetch the next page's first lines. `bytes`: what a body takes of the stream.
  void prefetch_page(int w, int64_t bytes) {
    constexpr int64_t page = 4096, first = 512;
    print("if ((((long)(p{} + i) + {}) & {}) < {}) {{\n", w, page / 2, page - 1, bytes);
    prefetch(w, 2, page / 2, first);
    text_ += "}\n";
  }

  std::vector<int> prefetched_;  // Windows whose loads are prefetched.
};

}  // namespace

std::vector<CpuArgument> cpu_arguments(const Program& p) {
  std::vector<CpuArgument> all;
  for (size_t w = 0; w < p.windows.size(); ++w) {
    if (p.windows[w].in_memory()) all.push_back({CpuArgument::Window, static_cast<int>(w)});
  }
  for (size_t k = 0; k < p.numbers.size(); ++k) {
    if (p.numbers[k].control) all.push_back({CpuArgument::Number, static_cast<int>(k)});
  }
  return all;
}

CpuKernel cpu_kernel(const Program& p) {
  if (p.row && p.row == p.space.numel()) return cpu_whole(p);
  if (packs_rows(p)) return cpu_packed_rows(p);
  if (p.row) return cpu_rows(p);
  return reads_transposed(p) ? cpu_transposed(p) : Text(p).run();
}

}  // namespace brrr::program
