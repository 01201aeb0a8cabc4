#include "ops/program/cpu.h"

#include <algorithm>
#include <bit>

#include "ops/vocabulary/spelling.h"

namespace brrr::program {

namespace {

// A kernel that moves more than this leaves nothing in a cache for the next one, and a store that
// goes around the caches saves reading the lines it overwrites.
constexpr int64_t kStreaming = int64_t{64} << 20;
// How far ahead they are asked for: 4 KB is late, 16 KB begins to push out what is in use.
constexpr int64_t kAhead = 8 << 10;
constexpr int64_t kGrain = 1 << 15;  // Elements worth a thread.

class Text {
 public:
  explicit Text(const Program& p)
      : p_(p), ndim_(p.space.ndim), size_(p.space.size), streams_(p.windows.size()) {}

  CpuKernel run() {
    out_.arguments = cpu_arguments(p_);
    choose_stores();
    out_.body = "(char* const* a, long begin, long end) {\n";
    pointers();
    emit(Statement::Never, 1, false, "  ");
    const int unroll = choose_unroll();
    const int inner = ndim_ - 1;
    if (ndim_ == 1) {
      out_.extent = size_[0];
      out_.grain = kGrain;
      loops("begin", "end", unroll, "  ");
    } else {
      out_.extent = 1;
      for (int d = 0; d < inner; ++d) out_.extent *= size_[d];
      out_.grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(size_[inner], 1));
      rows();
      emit(Statement::WithRow, 1, false, "    ");
      loops("0", fmt::format("{}", size_[inner]), unroll, "    ");
      out_.body += "  }\n";
    }
    if (around_) out_.body += "  fence_nt();\n";
    out_.body += "}\n";
    return std::move(out_);
  }

 private:
  struct Stream {
    bool around = false;  // May be stored around the caches.
    bool ahead = false;   // Its loads are asked for ahead of time.
  };
  const Window& window(size_t w) const { return p_.windows[w]; }
  int64_t inner_stride(size_t w) const { return window(w).stride[ndim_ - 1]; }

  // Every element of the space has a place of its own.
  bool streams(const Window& w) const {
    return std::all_of(w.stride, w.stride + ndim_, [](int64_t s) { return s != 0; });
  }

  // Streamed stores need whole, aligned cache lines: the rows' distances are checked here, the
  // addresses when the kernel starts. Streamed loads are asked for ahead of time beside operands
  // that are read again and again: a row of 4096 weights keeps the hardware from doing so in time.
  void choose_stores() {
    int64_t bytes = 0;
    bool reread = false;
    for (size_t w = 0; w < streams_.size(); ++w) {
      if (!window(w).in_memory()) continue;
      int64_t own = window(w).item();
      for (int d = 0; d < ndim_; ++d) own *= window(w).stride[d] ? size_[d] : 1;
      bytes += own;
      reread |= window(w).loaded && inner_stride(w) != 0 && !streams(window(w));
    }
    for (size_t w = 0; w < streams_.size() && bytes >= kStreaming; ++w) {
      const Window& x = window(w);
      const bool dense = x.in_memory() && inner_stride(w) == 1;
      streams_[w].ahead = dense && reread && x.loaded && streams(x);
      bool around = dense && x.stored && !x.loaded && x.item() >= 4;
      for (int d = 0; d < ndim_ - 1; ++d) around &= x.stride[d] * x.item() % 64 == 0;
      streams_[w].around = around;
      around_ |= around;
    }
  }

  // `o<w>` is where a window begins, `p<w>` where it does in the row.
  const char* origin() const { return ndim_ > 1 ? "o" : "p"; }
  std::string pointer_type(const Window& w) const {
    return w.source == Window::Index ? "long" : fmt::format("{}*", spelling(w.dtype).element);
  }

  void pointers() {
    for (size_t k = 0; k < out_.arguments.size(); ++k) {
      const CpuArgument& a = out_.arguments[k];
      if (a.number) continue;
      const std::string type = pointer_type(window(static_cast<size_t>(a.which)));
      out_.body += fmt::format("  {} const {}{} = ({})a[{}];\n", type, origin(), a.which, type, k);
    }
    for (size_t w = 0; w < streams_.size(); ++w) {
      if (window(w).touched() && !window(w).in_memory())
        out_.body += fmt::format("  const long {}{} = 0;\n", origin(), w);
    }
    if (!around_) return;
    std::string together = "0";
    for (size_t w = 0; w < streams_.size(); ++w) {
      if (!streams_[w].around) continue;
      together +=
          ndim_ > 1 ? fmt::format(" | (long)o{}", w) : fmt::format(" | (long)(p{} + begin)", w);
    }
    out_.body += fmt::format("  const bool around = ({}) % 64 == 0;\n", together);
  }

  void rows() {
    const int inner = ndim_ - 1;
    out_.body += "  for (long r = begin; r < end; ++r) {\n";
    // The row number taken apart into the outer dims, the last of them fastest.
    std::string rest = "r";
    for (int d = inner - 1; d >= 0; --d) {
      if (d == 0) {
        out_.body += fmt::format("    const long j0 = {};\n", rest);
      } else {
        out_.body +=
            fmt::format("    const long j{0} = {1} % {2}, k{0} = {1} / {2};\n", d, rest, size_[d]);
        rest = fmt::format("k{}", d);
      }
    }
    for (size_t w = 0; w < streams_.size(); ++w) {
      if (!window(w).touched()) continue;
      std::string at = fmt::format("o{}", w);
      for (int d = 0; d < inner; ++d) {
        if (window(w).stride[d]) at += fmt::format(" + j{} * {}", d, window(w).stride[d]);
      }
      out_.body += fmt::format("    {} const p{} = {};\n", pointer_type(window(w)), w, at);
    }
  }

  // The innermost dim: `unroll` vectors at a time, then one at a time under a mask.
  void loops(const std::string& from, const std::string& to, int unroll,
             const std::string& indent) {
    out_.body += fmt::format("{}long i = {};\n", indent, from);
    if (size_[ndim_ - 1] > 1) {
      out_.body += fmt::format("{0}for (; i + {1} <= {2}; i += {1}) {{\n", indent, 16 * unroll, to);
      prefetches(unroll, indent + "  ");
      emit(Statement::InRow, unroll, false, indent + "  ");
      out_.body += indent + "}\n";
    }
    out_.body += fmt::format("{}for (; i < {}; i += 16) {{\n", indent, to);
    out_.body +=
        fmt::format("{0}  const int n = {1} - i < 16 ? (int)({1} - i) : 16;\n", indent, to);
    emit(Statement::InRow, 1, true, indent + "  ");
    out_.body += indent + "}\n";
  }

  void prefetches(int unroll, const std::string& indent) {
    for (size_t w = 0; w < streams_.size(); ++w) {
      const int64_t bytes = 16 * unroll * window(w).item();
      for (int64_t line = 0; streams_[w].ahead && line < bytes; line += 64) {
        out_.body +=
            fmt::format("{}prefetch((const char*)(p{} + i) + {});\n", indent, w, kAhead + line);
      }
    }
  }

  std::string load(const Statement& x, int u, bool tail) const {
    const auto w = static_cast<size_t>(x.which);
    const int64_t s = inner_stride(w);
    const bool index = window(w).source == Window::Index;
    const char* base = x.varies == Statement::Never ? origin() : "p";
    const std::string at = tail ? "i" : fmt::format("i + {}", 16 * u);
    if (index && s == 0) return fmt::format("splat({}{})", base, w);
    if (index) {
      return fmt::format(
          "i64{{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}} * {0}l + "
          "(p{1} + ({2}) * {0}l)",
          s, w, at);
    }
    std::string vector = fmt::format("splat(*{}{})", base, w);
    if (s == 1) {
      vector = tail ? fmt::format("load_n(p{} + i, n)", w) : fmt::format("load(p{} + {})", w, at);
    } else if (s != 0) {
      vector = tail ? fmt::format("load_strided_n(p{0} + i * {1}, {1}l, n)", w, s)
                    : fmt::format("load_strided(p{0} + ({1}) * {2}, {2}l)", w, at, s);
    }
    return fill(spelling(window(w).dtype).load, {vector});
  }

  std::string store(const Statement& x, int u, bool tail) const {
    const auto w = static_cast<size_t>(x.which);
    const std::string v = fill(spelling(window(w).dtype).store, {name(x.args[0], u)});
    const int64_t s = inner_stride(w);
    // A space of one element has stride 0: its store is a tail of one lane.
    if (tail) {
      return s <= 1 ? fmt::format("store_n(p{} + i, {}, n)", w, v)
                    : fmt::format("store_strided_n(p{} + i * {}, {}, {}l, n)", w, s, v, s);
    }
    if (s > 1)
      return fmt::format("store_strided(p{0} + (i + {1}) * {2}, {3}, {2}l)", w, 16 * u, s, v);
    const std::string to = fmt::format("p{} + i + {}, {}", w, 16 * u, v);
    return streams_[w].around ? fmt::format("around ? store_nt({0}) : store({0})", to)
                              : fmt::format("store({})", to);
  }

  const Statement& statement(int id) const { return p_.statements[static_cast<size_t>(id)]; }

  bool is_literal(const Statement& s) const {
    return s.kind == Statement::Constant || (s.kind == Statement::Number && !number(s).control);
  }
  const Number& number(const Statement& s) const {
    return p_.numbers[static_cast<size_t>(s.which)];
  }

  // What holds the statement's value in vector u.
  std::string name(int id, int u) const {
    const Statement& s = statement(id);
    if (is_literal(s)) return value(s);
    return s.varies < Statement::InRow ? fmt::format("v{}", id) : fmt::format("v{}_{}", id, u);
  }

  // Of a constant or number.
  std::string value(const Statement& s) const {
    if (s.kind == Statement::Constant) return splat(s.type, s.text);
    const Number& c = number(s);
    if (!c.control) return splat(s.type, literal(c));
    size_t k = 0;
    while (!out_.arguments[k].number || out_.arguments[k].which != s.which) ++k;
    return splat(s.type, fmt::format("*(const {}*)a[{}]", spelling(c.dtype).element, k));
  }

  // The most values that are in registers at once: loads come first, stores last.
  size_t live_vectors() const {
    const size_t n = p_.statements.size();
    std::vector<size_t> last(n);
    for (size_t k = 0; k < n; ++k) {
      for (int a : p_.statements[k].args) last[static_cast<size_t>(a)] = k;
    }
    size_t most = 1, live = 0;
    std::vector<size_t> ends(n + 1);
    for (size_t k = 0; k < n; ++k) {
      const Statement& s = p_.statements[k];
      live -= ends[k];
      if (s.varies != Statement::InRow || s.kind == Statement::Store) continue;
      most = std::max(most, ++live);
      ++ends[std::max(last[k], k + 1)];
    }
    return most;
  }

  // A core looks some 200 operations ahead. Polynomials one after the other fill that with one
  // dependent chain unless enough vectors take each step together: 20 of them took a third of the
  // time with eight vectors that they took with one. The compiler pays for long text: some 5 ms for
  // a polynomial of one vector.
  int choose_unroll() const {
    constexpr size_t most_polynomials = 64, statements = 2048, registers = 24;
    size_t cost = 0, lines = 1;
    for (const Statement& s : p_.statements) {
      if (s.varies != Statement::InRow) continue;
      cost += s.cost;
      lines += s.kind == Statement::Formula;
    }
    const size_t polynomials = (cost + 1) / 2;
    if (polynomials > 1) {
      const size_t fits = std::max<size_t>(most_polynomials / polynomials, 1);
      return static_cast<int>(std::min<size_t>(8, std::bit_floor(fits)));
    }
    const size_t most = std::min(registers / live_vectors(), statements / lines);
    return static_cast<int>(std::clamp<size_t>(most, 1, 4));
  }

  // Statement by statement over all vectors of the unrolled body: independent chains side by side.
  void emit(Statement::Varies which, int unroll, bool tail, const std::string& indent) {
    for (size_t k = 0; k < p_.statements.size(); ++k) {
      const Statement& s = p_.statements[k];
      for (int u = 0; s.varies == which && !is_literal(s) && u < unroll; ++u) {
        out_.body += indent + line(s, static_cast<int>(k), u, tail) + ";\n";
      }
    }
  }
  std::string line(const Statement& s, int id, int u, bool tail) const {
    if (s.kind == Statement::Store) return store(s, u, tail);
    std::vector<std::string> args;
    for (int a : s.args) args.push_back(name(a, u));
    return fmt::format("const auto {} = {}", name(id, u),
                       s.kind == Statement::Load      ? load(s, u, tail)
                       : s.kind == Statement::Formula ? fill(s.text, args)
                                                      : value(s));
  }

  const Program& p_;
  const int ndim_;
  const int64_t* const size_;
  std::vector<Stream> streams_;  // By window.
  CpuKernel out_;
  bool around_ = false;
};

}  // namespace

std::vector<CpuArgument> cpu_arguments(const Program& p) {
  std::vector<CpuArgument> all;
  for (size_t w = 0; w < p.windows.size(); ++w) {
    if (p.windows[w].in_memory()) all.push_back({false, static_cast<int>(w)});
  }
  for (size_t k = 0; k < p.numbers.size(); ++k) {
    if (p.numbers[k].control) all.push_back({true, static_cast<int>(k)});
  }
  return all;
}

CpuKernel cpu_kernel(const Program& p) {
  return Text(p).run();
}

}  // namespace brrr::program
