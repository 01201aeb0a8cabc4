// Text of a fused group: one loop nest, loads, the rows' formulas, stores.
#include <algorithm>
#include <bit>
#include <unordered_map>

#include "graph/windows.h"
#include "ops/vocabulary/spelling.h"
#include "ops/kinds/pointwise.h"

namespace brrr::graph {

namespace {

struct Stream : Window {
  int argument = -1;
  bool around = false;  // May be stored around the caches.
  bool ahead = false;   // Its loads are asked for ahead of time.
  bool unit = false;    // The register that holds it now is in [-1, 1], or NaN.
  bool number = false;  // One element, read only: it is in a register before the loop begins.
};

// A kernel that moves more than this leaves nothing in a cache for the next one, and a store that
// goes around the caches saves reading the lines it overwrites.
constexpr int64_t kStreaming = int64_t{64} << 20;
// How far ahead they are asked for: 4 KB is late, 16 KB begins to push out what is in use.
constexpr int64_t kAhead = 8 << 10;

class Generator {
 public:
  Generator(const Recording& r, const Group& g, const Schedule& s)
      : r_(r), g_(g), s_(s), found_(r, g, s), ndim_(found_.ndim), size_(found_.size) {
    for (const Window& w : found_.all) windows_.push_back({w});
    for (Stream& w : windows_) {
      if (!w.touched()) continue;
      w.argument = static_cast<int>(out_.arguments.size());
      out_.arguments.push_back({w.value, kNone});
    }
  }

  KernelText run() {
    choose_stores();
    out_.body = "(char* const* a, long begin, long end) {\n";
    scalars();
    pointers();
    numbers();
    const int unroll = choose_unroll();
    const int inner = ndim_ - 1;
    if (ndim_ == 1) {
      out_.extent = size_[0];
      out_.grain = 1 << 15;
      loops("begin", "end", unroll, "  ");
    } else {
      out_.extent = 1;
      for (int d = 0; d < inner; ++d) out_.extent *= size_[d];
      out_.grain = std::max<int64_t>(1, (1 << 15) / std::max<int64_t>(size_[inner], 1));
      rows();
      loops("0", fmt::format("{}", size_[inner]), unroll, "    ");
      out_.body += "  }\n";
    }
    if (around_) out_.body += "  fence_nt();\n";
    out_.body += "}\n";
    return std::move(out_);
  }

 private:
  const Value& value(uint32_t id) const { return r_.values[id]; }

  size_t window_of(uint32_t id) const { return found_.of(id); }

  int64_t element_bytes(const Stream& w) const {
    return static_cast<int64_t>(itemsize(value(w.value).dtype));
  }

  // Every element of the space has a place of its own.
  bool streams(const Stream& w) const {
    return std::all_of(w.stride, w.stride + ndim_, [](int64_t s) { return s != 0; });
  }

  // Streamed stores need whole, aligned cache lines: the rows' distances are checked here, the
  // addresses when the kernel starts. Streamed loads are asked for ahead of time beside operands
  // that are read again and again: a row of 4096 weights keeps the hardware from doing so in time.
  void choose_stores() {
    int64_t bytes = 0;
    for (const Stream& w : windows_) {
      if (w.argument < 0) continue;
      int64_t own = element_bytes(w);
      for (int d = 0; d < ndim_; ++d) own *= w.stride[d] ? size_[d] : 1;
      bytes += own;
    }
    if (bytes < kStreaming) return;
    const bool reread = std::any_of(windows_.begin(), windows_.end(), [&](const Stream& w) {
      return w.loaded && w.stride[ndim_ - 1] != 0 && !streams(w);
    });
    for (Stream& w : windows_) {
      w.ahead = reread && w.loaded && w.stride[ndim_ - 1] == 1 && streams(w);
      w.around = w.stored && !w.loaded && element_bytes(w) >= 4 && w.stride[ndim_ - 1] == 1;
      for (int d = 0; d < ndim_ - 1; ++d) w.around &= w.stride[d] * element_bytes(w) % 64 == 0;
      around_ |= w.around;
    }
  }

  int64_t inner_stride(const Stream& w) const {
    return size_[ndim_ - 1] == 1 ? 0 : w.stride[ndim_ - 1];
  }

  std::string scalar_text(const Instr& i, int operand, int word, DType compute) {
    const char* element = spelling(compute).element;
    const bool floating = i.attrs.kind(operand) == 3;
    if (i.attrs.dynamic >> word & 1) {
      const uint16_t before = static_cast<uint16_t>(i.attrs.dynamic & ((1u << word) - 1));
      const auto control = i.control + static_cast<uint32_t>(std::popcount(before));
      out_.arguments.push_back({kNone, control});
      const std::string name = fmt::format("c{}", out_.arguments.size() - 1);
      out_.body +=
          fmt::format("  const {} {} = splat(({})*(const {}*)a[{}]);\n", spelling(compute).vector,
                      name, element, floating ? "double" : "long", out_.arguments.size() - 1);
      return name;
    }
    SymText literal(element, "", "");
    if (floating) return literal.name(literal.constant(i.attrs.d(word)));
    const int64_t v = i.attrs.v[word];
    const std::string text = v == INT64_MIN ? "-9223372036854775807l - 1" : fmt::format("{}l", v);
    return fmt::format("splat(({})({}))", element, text);
  }

  void scalars() {
    for (uint32_t at : g_.instrs) {
      const Instr& i = r_.instrs[at];
      computes_.push_back(compute_dtype(r_, i));
      std::vector<std::string>& names = scalars_.emplace_back();
      for (int k = 0, word = 0; k < i.n_in; ++k) {
        names.push_back(i.attrs.kind(k) ? scalar_text(i, k, word++, computes_.back()) : "");
      }
    }
  }

  void pointers() {
    for (size_t w = 0; w < windows_.size(); ++w) {
      if (windows_[w].argument < 0) continue;
      const char* element = spelling(value(windows_[w].value).dtype).element;
      const bool in_rows = ndim_ > 1;
      out_.body += fmt::format("  {}* const {}{} = ({}*)a[{}];\n", element, in_rows ? "o" : "p", w,
                               element, windows_[w].argument);
    }
    if (!around_) return;
    std::string together = "0";
    for (size_t w = 0; w < windows_.size(); ++w) {
      if (!windows_[w].around) continue;
      together +=
          ndim_ > 1 ? fmt::format(" | (long)o{}", w) : fmt::format(" | (long)(p{} + begin)", w);
    }
    out_.body += fmt::format("  const bool around = ({}) % 64 == 0;\n", together);
  }

  // Elements that no store of the kernel changes, which the compiler does not know.
  void numbers() {
    for (size_t w = 0; w < windows_.size(); ++w) {
      Stream& window = windows_[w];
      window.number =
          window.loaded && !window.stored &&
          std::all_of(window.stride, window.stride + ndim_, [](int64_t s) { return s == 0; });
      if (!window.number) continue;
      const Spelling& how = spelling(value(window.value).dtype);
      out_.body +=
          fmt::format("  const auto x{} = {};\n", w,
                      fill(how.load, fmt::format("splat(*{}{})", ndim_ > 1 ? "o" : "p", w)));
    }
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
    for (size_t w = 0; w < windows_.size(); ++w) {
      if (windows_[w].argument < 0 || windows_[w].number) continue;
      std::string at = fmt::format("o{}", w);
      for (int d = 0; d < inner; ++d) {
        if (windows_[w].stride[d]) at += fmt::format(" + j{} * {}", d, windows_[w].stride[d]);
      }
      out_.body += fmt::format("    {}* const p{} = {};\n",
                               spelling(value(windows_[w].value).dtype).element, w, at);
    }
  }

  // The innermost dim: `unroll` vectors at a time, then one at a time under a mask.
  void loops(const std::string& from, const std::string& to, int unroll,
             const std::string& indent) {
    out_.body += fmt::format("{}long i = {};\n", indent, from);
    if (size_[ndim_ - 1] > 1) {
      out_.body += fmt::format("{0}for (; i + {1} <= {2}; i += {1}) {{\n", indent, 16 * unroll, to);
      emit(unroll, false, indent + "  ");
      out_.body += indent + "}\n";
    }
    out_.body += fmt::format("{}for (; i < {}; i += 16) {{\n", indent, to);
    out_.body +=
        fmt::format("{0}  const int n = {1} - i < 16 ? (int)({1} - i) : 16;\n", indent, to);
    emit(1, true, indent + "  ");
    out_.body += indent + "}\n";
  }

  std::string load(size_t w, int u, bool tail) const {
    const Stream& window = windows_[w];
    const Spelling& how = spelling(value(window.value).dtype);
    const int64_t s = inner_stride(window);
    const std::string at = fmt::format("i + {}", 16 * u);
    if (s == 0) return fill(how.load, fmt::format("splat(*p{})", w));
    if (s == 1) {
      return fill(how.load, tail ? fmt::format("load_n(p{} + i, n)", w)
                                 : fmt::format("load(p{} + {})", w, at));
    }
    return fill(how.load, tail ? fmt::format("load_strided_n(p{} + i * {}, {}l, n)", w, s, s)
                               : fmt::format("load_strided(p{} + ({}) * {}, {}l)", w, at, s, s));
  }

  std::string store(size_t w, const std::string& x, int u, bool tail) const {
    const Stream& window = windows_[w];
    const std::string v = fill(spelling(value(window.value).dtype).store, x);
    const int64_t s = inner_stride(window);
    if (s <= 1) {
      if (window.around && !tail) {
        const std::string at = fmt::format("p{} + i + {}, {}", w, 16 * u, v);
        return fmt::format("around ? store_nt({0}) : store({0});", at);
      }
      // A space of one element has stride 0: its store is a tail of one lane.
      return tail ? fmt::format("store_n(p{} + i, {}, n);", w, v)
                  : fmt::format("store(p{} + i + {}, {});", w, 16 * u, v);
    }
    return tail ? fmt::format("store_strided_n(p{} + i * {}, {}, {}l, n);", w, s, v, s)
                : fmt::format("store_strided(p{} + (i + {}) * {}, {}, {}l);", w, 16 * u, s, v, s);
  }

  // How many windows are in registers at once: loads come first, stores last.
  size_t live_vectors() const {
    const size_t n = g_.instrs.size();
    std::vector<size_t> from(windows_.size(), n), to(windows_.size(), 0);
    for (size_t at = 0; at < n; ++at) {
      const Instr& i = r_.instrs[g_.instrs[at]];
      for (int k = 0; k < i.n_in; ++k) {
        if (r_.in(i)[k] != kNone) to[window_of(r_.in(i)[k])] = at;
      }
      for (int k = 0; k < i.n_out; ++k) {
        const size_t w = window_of(r_.out(i)[k]);
        from[w] = std::min(from[w], at);
      }
    }
    for (size_t w = 0; w < windows_.size(); ++w) {
      if (windows_[w].loaded) from[w] = 0;
      if (windows_[w].stored) to[w] = n;
    }
    size_t most = 1;
    for (size_t at = 0; at < n; ++at) {
      size_t live = 0;
      for (size_t w = 0; w < windows_.size(); ++w) live += from[w] <= at && at <= to[w];
      most = std::max(most, live);
    }
    return most;
  }

  // A core looks some 200 operations ahead. Polynomials one after the other fill that with one
  // dependent chain unless enough vectors take each step together: 20 of them took a third of the
  // time with eight vectors that they took with one. The compiler pays for long text: some 5 ms for
  // a polynomial of one vector.
  int choose_unroll() const {
    constexpr size_t polynomials = 64, statements = 2048, registers = 24;
    TextSize text;
    for (uint32_t at : g_.instrs) text += text_size(r_, r_.instrs[at]);
    const size_t fits = std::max<size_t>(polynomials / std::max<size_t>(text.polynomials, 1), 1);
    if (text.polynomials > 1) return static_cast<int>(std::min<size_t>(8, std::bit_floor(fits)));
    const size_t most = std::min(registers / live_vectors(), statements / text.lines);
    return static_cast<int>(std::clamp<size_t>(most, 1, 4));
  }

  // Statement by statement over all vectors of the unrolled body: independent chains side by side.
  void emit(int unroll, bool tail, const std::string& indent) {
    std::vector<std::vector<std::string>> now(
        windows_.size(), std::vector<std::string>(static_cast<size_t>(unroll)));
    for (size_t w = 0; w < windows_.size() && !tail; ++w) {
      const int64_t bytes = 16 * unroll * element_bytes(windows_[w]);
      for (int64_t line = 0; windows_[w].ahead && line < bytes; line += 64) {
        out_.body +=
            fmt::format("{}prefetch((const char*)(p{} + i) + {});\n", indent, w, kAhead + line);
      }
    }
    for (size_t w = 0; w < windows_.size(); ++w) {
      windows_[w].unit = false;
      if (!windows_[w].loaded) continue;
      for (int u = 0; u < unroll; ++u) {
        if (windows_[w].number) {
          now[w][static_cast<size_t>(u)] = fmt::format("x{}", w);
          continue;
        }
        now[w][static_cast<size_t>(u)] = fmt::format("x{}_{}", w, u);
        out_.body += fmt::format("{}const auto x{}_{} = {};\n", indent, w, u, load(w, u, tail));
      }
    }
    for (size_t n = 0; n < g_.instrs.size(); ++n) emit_instr(n, unroll, indent, now);
    for (size_t w = 0; w < windows_.size(); ++w) {
      for (int u = 0; windows_[w].stored && u < unroll; ++u) {
        out_.body += indent + store(w, now[w][static_cast<size_t>(u)], u, tail) + "\n";
      }
    }
  }

  void emit_instr(size_t n, int unroll, const std::string& indent,
                  std::vector<std::vector<std::string>>& now) {
    const Instr& i = r_.instrs[g_.instrs[n]];
    const PointwiseInfo& info = *i.op->pointwise;
    const DType compute = computes_[n];
    std::vector<std::vector<std::string>> lines(static_cast<size_t>(unroll));
    std::vector<std::vector<std::string>> results(static_cast<size_t>(unroll));
    bool unit[kMaxOutputs];
    for (int u = 0; u < unroll; ++u) {
      const auto lane = static_cast<size_t>(u);
      SymText text(spelling(compute).element, fmt::format("t{}_{}_", n, u), indent);
      SymText* before = std::exchange(SymText::current, &text);
      Sym in[kMaxOperands];
      for (int k = 0; k < i.n_in; ++k) {
        const uint32_t id = r_.in(i)[k];
        if (id == kNone) {
          in[k] = Sym(text.operand(scalars_[n][static_cast<size_t>(k)], -1));
          continue;
        }
        const size_t w = window_of(id);
        const std::string name = to_compute(now[w][lane], value(id).dtype, compute);
        in[k] = Sym(text.operand(name, -1, windows_[w].unit));
      }
      int out[kMaxOutputs];
      info.emit(in, out);
      SymText::current = before;
      for (size_t at = 0; at < text.text().size();) {
        const size_t next = text.text().find('\n', at) + 1;
        lines[lane].push_back(text.text().substr(at, next - at));
        at = next;
      }
      for (int k = 0; k < i.n_out; ++k) {
        results[lane].push_back(text.name(out[k]));
        unit[k] = text.unit(out[k]);
      }
    }
    for (size_t l = 0; l < lines[0].size(); ++l) {
      for (const auto& one : lines) out_.body += one[l];
    }
    for (int k = 0; k < i.n_out; ++k) {
      const uint32_t id = r_.out(i)[k];
      for (int u = 0; u < unroll; ++u) {
        const auto lane = static_cast<size_t>(u);
        const std::string name = fmt::format("y{}_{}_{}", n, k, u);
        out_.body += fmt::format("{}const auto {} = {};\n", indent, name,
                                 from_compute(results[lane][static_cast<size_t>(k)], compute,
                                              info.mask_out[k], value(id).dtype, s_.fast));
        now[window_of(id)][lane] = name;
      }
      // Rounding keeps to [-1, 1]; uint8 would wrap around.
      windows_[window_of(id)].unit = unit[k] && is_floating(value(id).dtype);
    }
  }

  const Recording& r_;
  const Group& g_;
  const Schedule& s_;
  KernelText out_;
  const Windows found_;
  const int ndim_;  // Of the collapsed space.
  const int64_t* const size_;
  std::vector<Stream> windows_;                    // As found_.all.
  std::vector<DType> computes_;                    // By instruction of the group.
  std::vector<std::vector<std::string>> scalars_;  // By instruction and operand.
  bool around_ = false;
};

}  // namespace

TextSize& TextSize::operator+=(const TextSize& o) {
  lines += o.lines;
  polynomials += o.polynomials;
  return *this;
}

TextSize text_size(const Recording& r, const Instr& i) {
  static thread_local std::unordered_map<const OpDef*, TextSize> known;
  auto [at, fresh] = known.try_emplace(i.op);
  if (fresh) {
    SymText text("float", "t", "");
    SymText* before = std::exchange(SymText::current, &text);
    Sym in[kMaxOperands];
    for (Sym& x : in) x = Sym(text.operand("", -1));
    int out[kMaxOutputs];
    i.op->pointwise->emit(in, out);
    SymText::current = before;
    const auto lines = std::count(text.text().begin(), text.text().end(), '\n');
    at->second = {static_cast<size_t>(std::max<int64_t>(lines, 1)),
                  static_cast<size_t>(text.chains)};
  }
  TextSize size = at->second;
  size_t conversions = 0;
  for (uint32_t k = i.first_in; k < i.first_out + i.n_out; ++k) {
    if (r.operands[k] == kNone) continue;
    const DType t = r.value(r.operands[k]).dtype;
    conversions += t == kFloat16 || t == kBFloat16;
  }
  size.polynomials += (conversions + 1) / 2;
  return size;
}

KernelText generate(const Recording& r, const Group& g, const Schedule& s) {
  return Generator(r, g, s).run();
}

}  // namespace brrr::graph
