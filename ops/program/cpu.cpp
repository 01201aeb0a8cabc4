#include "ops/program/cpu.h"

#include <algorithm>
#include <utility>

#include "ops/program/cpu_text.h"

namespace brrr::program {

namespace {

// Bytes that every row reads again, up to which the prefetcher keeps up by itself. Beside a first
// level of 48 KB asking takes a fifth longer with 8 KB of them, and not asking up to twice as long
// with 32; beside one of 32 KB not asking takes a sixth longer with 8 KB already. Asking near by is
// always worth it, with none of them too.
int64_t reread_limit() { return asks_near() ? -1 : prefetch_level() == 1 ? 16 << 10 : 4 << 10; }

// A walk over elements.
class Text : public CpuText {
 public:
  using CpuText::CpuText;

  CpuKernel run() {
    ask_ahead();
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
  // Streamed loads are asked for ahead of time beside operands that are read again and again: rows
  // of 4096 weights keep the hardware from doing so in time.
  void ask_ahead() {
    int64_t reread = 0;
    for (const Window& w : p_.windows) {
      if (w.loaded && inner_stride(w) != 0 && !streams(w)) reread += p_.bytes_of(w);
    }
    for (int w = 0; w < windows() && streaming_ && reread > reread_limit(); ++w) {
      const Window& x = window(w);
      if (x.in_memory() && inner_stride(w) == 1 && x.loaded && streams(x)) ahead_.push_back(w);
    }
  }

  // Lines of several streams are early enough near by in the first level, and asking more often
  // delays them (gelu(x w + b) + r, rows of 4096: 5.3 and 4.2 ms for 64 MB).
  void at_body(int unroll) override {
    const Ahead one = ahead_of_one_stream();
    const bool several = prefetch_level() == 1 && ahead_.size() > 1;
    const auto bytes_of = [&](int w) { return 16 * unroll * window(w).item(); };
    // Lines of one stream before the next one's page took a twentieth longer.
    for (int w : ahead_) {
      if (!several)
        ask(w, 2, one.second, bytes_of(w));
      else if (asks_near())
        ask_page(w, bytes_of(w));
    }
    const int64_t near_by = !several ? one.used : asks_near() ? kAhead / 8 : kAhead / 2;
    for (int w : ahead_) ask(w, prefetch_level(), near_by, bytes_of(w));
  }
  // So many bytes of a stream, so many ahead.
  void ask(int w, int level, int64_t ahead, int64_t bytes) {
    for (int64_t line = 0; line < bytes; line += 64) {
      print("prefetch<{}>((const char*)(p{} + i) + {});\n", level, w, ahead + line);
    }
  }
  // What fetches by itself stops where a page ends: in a body of so many bytes, once a page, asks
  // for the next one's first lines, half a page before.
  void ask_page(int w, int64_t bytes) {
    constexpr int64_t page = 4096, first = 512;
    print("if ((((long)(p{} + i) + {}) & {}) < {}) {{\n", w, page / 2, page - 1, bytes);
    ask(w, 2, page / 2, first);
    text_ += "}\n";
  }

  std::vector<int> ahead_;  // Windows whose loads are asked for ahead of time.
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
  if (lie_together(p)) return cpu_together(p);
  if (p.row) return cpu_rows(p);
  return reads_across(p) ? cpu_across(p) : Text(p).run();
}

}  // namespace brrr::program
