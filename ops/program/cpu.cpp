#include "ops/program/cpu.h"

#include <unistd.h>

#include <algorithm>

#include "ops/program/cpu_text.h"

namespace brrr::program {

namespace {

// A kernel that moves more than this leaves nothing in a cache for the next one, and a store that
// goes around the caches saves reading the lines it overwrites.
constexpr int64_t kStreaming = int64_t{64} << 20;
// How far ahead they are asked for: 4 KB is late, 16 KB begins to push out what is in use.
constexpr int64_t kAhead = 8 << 10;
// Operands that every row reads again, below which the prefetcher keeps up by itself: with 8 KB of
// them asking takes a fifth longer, with 32 KB not asking up to twice as long.
constexpr int64_t kReread = 16 << 10;

// A walk over elements.
class Text : public CpuText {
 public:
  explicit Text(const Program& p) : CpuText(p), ahead_(p.windows.size()) {}

  CpuKernel run() {
    out_.arguments = cpu_arguments(p_);
    choose_stores();
    out_.body = "(char* const* a, long begin, long end) {\n";
    pointers();
    check_addresses();
    emit(all(Statement::Never), 1, false, "  ");
    const std::vector<int> elements = all(Statement::InRow);
    const int unroll = choose_unroll(elements), inner = ndim_ - 1;
    if (ndim_ == 1) {
      out_.extent = size_[0];
      out_.grain = kGrain;
      loops(elements, "begin", "end", unroll, "  ");
    } else {
      out_.extent = 1;
      for (int d = 0; d < inner; ++d) out_.extent *= size_[d];
      out_.grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(size_[inner], 1));
      std::vector<size_t> touched;
      for (size_t w = 0; w < p_.windows.size(); ++w) {
        if (window(w).touched()) touched.push_back(w);
      }
      out_.body += "  for (long r = begin; r < end; ++r) {\n";
      row_pointers("r", touched, "    ");
      emit(all(Statement::WithRow), 1, false, "    ");
      loops(elements, "0", fmt::format("{}", size_[inner]), unroll, "    ", size_[inner]);
      out_.body += "  }\n";
    }
    if (any_around_) out_.body += "  fence_nt();\n";
    out_.body += "}\n";
    return std::move(out_);
  }

 private:
  // Every element of the space has a place of its own.
  bool streams(const Window& w) const {
    return std::all_of(w.stride, w.stride + ndim_, [](int64_t s) { return s != 0; });
  }

  // Streamed stores need whole, aligned cache lines: the rows' distances are checked here, the
  // addresses when the kernel starts. Streamed loads are asked for ahead of time beside operands
  // that are read again and again: rows of 4096 weights keep the hardware from doing so in time.
  void choose_stores() {
    int64_t bytes = 0, reread = 0;
    for (size_t w = 0; w < ahead_.size(); ++w) {
      if (!window(w).in_memory()) continue;
      int64_t own = window(w).item();
      for (int d = 0; d < ndim_; ++d) own *= window(w).stride[d] ? size_[d] : 1;
      bytes += own;
      if (window(w).loaded && inner_stride(w) != 0 && !streams(window(w))) reread += own;
    }
    for (size_t w = 0; w < ahead_.size() && bytes >= kStreaming; ++w) {
      const Window& x = window(w);
      const bool dense = x.in_memory() && inner_stride(w) == 1;
      ahead_[w] = dense && reread > kReread && x.loaded && streams(x);
      bool around = dense && x.stored && !x.loaded && x.item() >= 4;
      for (int d = 0; d < ndim_ - 1; ++d) around &= x.stride[d] * x.item() % 64 == 0;
      around_[w] = around;
      any_around_ |= around;
    }
  }

  void check_addresses() {
    if (!any_around_) return;
    std::string together = "0";
    for (size_t w = 0; w < around_.size(); ++w) {
      if (!around_[w]) continue;
      together +=
          ndim_ > 1 ? fmt::format(" | (long)o{}", w) : fmt::format(" | (long)(p{} + begin)", w);
    }
    out_.body += fmt::format("  const bool around = ({}) % 64 == 0;\n", together);
  }

  void at_body(int unroll, const std::string& indent) override {
    // A first level of 32 KB is full of what is read again, and a line that it throws out before
    // its use would come from memory twice; in one of 48 KB there is room.
    static const int level = sysconf(_SC_LEVEL1_DCACHE_SIZE) < (48 << 10) ? 2 : 1;
    for (size_t w = 0; w < ahead_.size(); ++w) {
      const int64_t bytes = 16 * unroll * window(w).item();
      for (int64_t line = 0; ahead_[w] && line < bytes; line += 64) {
        out_.body += fmt::format("{}prefetch<{}>((const char*)(p{} + i) + {});\n", indent, level, w,
                                 kAhead + line);
      }
    }
  }

  std::vector<bool> ahead_;  // By window: its loads are asked for ahead of time.
  bool any_around_ = false;
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
  if (!p.row) return Text(p).run();
  return p.row == p.space.numel() ? cpu_whole(p) : cpu_rows(p);
}

}  // namespace brrr::program
