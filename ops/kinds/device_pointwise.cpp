#include "ops/kinds/device_pointwise.h"

#include "ops/vocabulary/spelling.h"

namespace brrr {

namespace {

class Text {
 public:
  Text(const PointwiseProgram& p, const std::string& name) : p_(p), name_(name) {}

  std::string run() {
    arguments();
    element();
    group();
    if (p_.walk.turned < 0)
      groups();
    else
      tiles();
    return out_ + "}\n";
  }

 private:
  using Program = PointwiseProgram;
  int count() const { return static_cast<int>(p_.windows.size()); }
  const Program::Window& window(int w) const { return p_.windows[static_cast<size_t>(w)]; }
  const char* memory(int w) const { return spelling(window(w).dtype).element; }
  DeviceWalk::Reach reach(int w) const { return window(w).reach; }
  bool splat(int w) const { return reach(w) == DeviceWalk::Splat; }
  bool passed(int w) const { return window(w).loaded || window(w).stored; }
  bool by_strides(int w) const { return passed(w) && DeviceWalk::by_strides(reach(w)); }

  void arguments() {
    out_ += fmt::format("struct A_{} {{\n", name_);
    for (int w = 0; w < count(); ++w) {
      if (passed(w)) out_ += fmt::format("  char* a{};\n", w);
    }
    for (size_t k = 0; k < p_.numbers.size(); ++k) {
      const char* type = spelling(p_.numbers[k].dtype).element;
      out_ += fmt::format("  {}{} c{};\n", p_.numbers[k].control ? "const " : "",
                          p_.numbers[k].control ? fmt::format("{}*", type) : type, k);
    }
    out_ += "  long n;\n";
    const int ndim = p_.walk.ndim;
    for (int d = 0; d < ndim; ++d) out_ += fmt::format("  long size{0}, mul{0}, shift{0};\n", d);
    for (int w = 0; w < count(); ++w) {
      if (by_strides(w)) out_ += fmt::format("  long s{}[{}];\n", w, ndim);
    }
    out_ += "};\n";
  }

  // One element: `x<w>` as they lie in memory to the members `y<w>` of the result.
  void element() {
    out_ += fmt::format("struct Y_{} {{\n", name_);
    for (int w = 0; w < count(); ++w) {
      if (window(w).stored) out_ += fmt::format("  {} y{};\n", memory(w), w);
    }
    out_ += fmt::format("}};\nBRRR_VX Y_{0} element_{0}(const A_{0}& p", name_);
    for (int w = 0; w < count(); ++w) {
      if (window(w).loaded) out_ += fmt::format(", const {} x{}", memory(w), w);
    }
    out_ += ") {\n";
    now_.assign(p_.windows.size(), "");
    unit_.assign(p_.windows.size(), false);
    for (int w = 0; w < count(); ++w) {
      if (!window(w).loaded) continue;
      now_[static_cast<size_t>(w)] = fmt::format("v{}", w);
      out_ += fmt::format("  const auto v{} = {};\n", w,
                          fill(spelling(window(w).dtype).load, fmt::format("load(&x{})", w)));
    }
    for (size_t n = 0; n < p_.steps.size(); ++n) step(n);
    out_ += fmt::format("  Y_{} y;\n", name_);
    for (int w = 0; w < count(); ++w) {
      if (!window(w).stored) continue;
      out_ += fmt::format("  store(&y.y{}, {});\n", w,
                          fill(spelling(window(w).dtype).store, now_[static_cast<size_t>(w)]));
    }
    out_ += "  return y;\n}\n";
  }

  std::string number(int k) const {
    const Program::Number& c = p_.numbers[static_cast<size_t>(k)];
    return fmt::format("splat({}p.c{})", c.control ? "*" : "", k);
  }

  void step(size_t n) {
    const Program::Step& s = p_.steps[n];
    const PointwiseInfo& info = *s.op->pointwise;
    SymText text(spelling(s.compute).element, fmt::format("t{}_", n), "  ");
    SymText* before = std::exchange(SymText::current, &text);
    Sym in[kMaxOperands];
    for (size_t i = 0; i < s.in.size(); ++i) {
      const int from = s.in[i];
      const auto w = static_cast<size_t>(from < 0 ? 0 : from);
      const DType dtype =
          from < 0 ? p_.numbers[static_cast<size_t>(~from)].dtype : p_.windows[w].dtype;
      const std::string value = to_compute(from < 0 ? number(~from) : now_[w], dtype, s.compute);
      in[i] = Sym(text.operand(value, -1, from >= 0 && unit_[w]));
    }
    int out[kMaxOutputs];
    info.emit(in, out);
    SymText::current = before;
    out_ += text.text();
    for (size_t k = 0; k < s.out.size(); ++k) {
      const auto w = static_cast<size_t>(s.out[k]);
      const DType dtype = p_.windows[w].dtype;
      const std::string name = fmt::format("r{}_{}", n, k);
      out_ +=
          fmt::format("  const auto {} = {};\n", name,
                      from_compute(text.name(out[k]), s.compute, info.mask_out[k], dtype, p_.fast));
      now_[w] = name;
      unit_[w] = text.unit(out[k]) && is_floating(dtype);
    }
  }

  // --- a group -----------------------------------------------------------------------------------

  // What a thread has of a group: `x<w>`, its elements of each window.
  void group() {
    out_ += fmt::format("struct G_{} {{\n", name_);
    for (int w = 0; w < count(); ++w) {
      if (!passed(w) || splat(w)) continue;
      std::string type = memory(w);
      if (reach(w) == DeviceWalk::Dense || reach(w) == DeviceWalk::Row) {
        type = pack(w);
      } else if (reach(w) != DeviceWalk::Held) {  // As many, but they may be more than an access.
        type = fmt::format("struct {{ {} v[{}]; }}", type, p_.walk.vector);
      }
      out_ += fmt::format("  {} x{};\n", type, w);
    }
    out_ += "};\n";
  }
  std::string pack(int w) const { return fmt::format("Pack<{}, {}>", memory(w), p_.walk.vector); }

  // The walk's last group may have elements beyond the last one.
  bool partial() const { return p_.walk.vector > 1 && !p_.walk.in_rows; }

  const char* index() const { return p_.walk.ndim && !p_.walk.wide ? "unsigned" : "unsigned long"; }

  // An element's number `r` taken apart, the last dim fastest: `j<d>`; of tiled dims, of the tile.
  void take_apart(const char* type, const char* indent) {
    const int ndim = p_.walk.ndim;
    for (int d = ndim - 1; d > 0; --d) {
      const std::string count =
          p_.walk.tiled(d) ? fmt::format("((p.size{} + {}) / {})", d, kDeviceTile - 1, kDeviceTile)
                           : fmt::format("p.size{}", d);
      const std::string quotient =
          p_.walk.wide ? fmt::format("r / {}", count)
                       : fmt::format("(unsigned)(((unsigned long)r * p.mul{0}) >> p.shift{0})", d);
      out_ += fmt::format("{0}const {1} q{2} = {3}, j{2} = r - q{2} * ({1}){4};\n", indent, type, d,
                          quotient, count);
      out_ += fmt::format("{}r = q{};\n", indent, d);
    }
    out_ += fmt::format("{}const {} j0 = r;\n", indent, type);
  }

  // `O`: how many bytes into each window an element lies.
  void offsets() {
    if (p_.walk.ndim == 0) return;
    out_ += fmt::format("struct O_{} {{\n", name_);
    for (int w = 0; w < count(); ++w) {
      if (by_strides(w)) out_ += fmt::format("  long o{};\n", w);
    }
    out_ +=
        fmt::format("}};\nBRRR_VX O_{0} offsets_{0}(const A_{0}& p, {1} r) {{\n", name_, index());
    take_apart(index(), "  ");
    out_ += fmt::format("  O_{} o;\n", name_);
    for (int w = 0; w < count(); ++w) {
      if (!by_strides(w)) continue;
      out_ += fmt::format("  o.o{} = ", w);
      for (int d = 0; d < p_.walk.ndim; ++d) {
        out_ += fmt::format("{}(long)j{} * p.s{}[{}]", d ? " + " : "", d, w, d);
      }
      out_ += ";\n";
    }
    out_ += "  return o;\n}\n";
  }

  // One of the two ways between memory and a group.
  void move(bool store) {
    const int vector = p_.walk.vector;
    const bool rows = p_.walk.ndim && p_.walk.in_rows;
    out_ += fmt::format("BRRR_VX void {1}_{0}(const A_{0}& p, const {2} e, {3}G_{0}& g) {{\n",
                        name_, store ? "write" : "read", index(), store ? "const " : "");
    if (rows) out_ += fmt::format("  const O_{0} o = offsets_{0}(p, e);\n", name_);
    const std::string unroll =
        fmt::format("#pragma unroll\n  for (int u = 0; u < {}; ++u) ", vector);
    // Beyond the end a thread reads its own first element again, and writes nothing.
    const std::string each = unroll + (partial() && store ? "if (e + u < p.n) " : "");
    const char* at = partial() && !store ? "(e + u < p.n ? e + u : e)" : "(e + u)";
    std::string whole, single;  // What is dense: as groups, and at the end an element at a time.
    for (int w = 0; w < count(); ++w) {
      if (splat(w) || !(store ? window(w).stored : window(w).loaded)) continue;
      const auto one = [&](const std::string& type, const std::string& from, const char* lane) {
        return store ? fmt::format("*({}*)({}) = g.x{}{};\n", type, from, w, lane)
                     : fmt::format("g.x{}{} = *(const {}*)({});\n", w, lane, type, from);
      };
      const std::string row = fmt::format("p.a{0} + o.o{0}", w);
      const std::string flat = fmt::format("({}*)p.a{} + ", memory(w), w);
      switch (reach(w)) {
        case DeviceWalk::Dense:
          whole += "  " + one(pack(w), flat + "e", "");
          single += each + one(memory(w), flat + at, ".v[u]");
          break;
        case DeviceWalk::Row:
          out_ += "  " + one(pack(w), row, "");
          break;
        case DeviceWalk::Held:
          out_ += "  " + one(memory(w), row, "");
          break;
        default:
          if (rows) {
            const std::string step = fmt::format(" + u * p.s{}[{}]", w, p_.walk.ndim - 1);
            out_ += unroll + one(memory(w), vector > 1 ? row + step : row, ".v[u]");
          } else {
            out_ += fmt::format("{0}{{\n    const O_{1} o = offsets_{1}(p, {2});\n    {3}  }}\n",
                                each, name_, at, one(memory(w), row, ".v[u]"));
          }
      }
    }
    out_ += !partial() || whole.empty()
                ? whole
                : fmt::format("  if (e + {} <= p.n) {{\n{}  }} else {{\n{}  }}\n", vector, whole,
                              single);
    out_ += "}\n";
  }

  // The elements of the window that are the same for all.
  void splats() {
    for (int w = 0; w < count(); ++w) {
      if (!window(w).loaded || !splat(w)) continue;
      out_ += fmt::format("  const {0} x{1} = *(const {0}*)p.a{1};\n", memory(w), w);
    }
  }

  // Element u of `group`: from what has been read of it to what will be written.
  void compute(const char* group, const char* indent) {
    out_ += fmt::format("{0}const Y_{1} y = element_{1}(p", indent, name_);
    for (int w = 0; w < count(); ++w) {
      if (!window(w).loaded) continue;
      out_ += splat(w) ? fmt::format(", x{}", w)
                       : fmt::format(", {}.x{}{}", group, w,
                                     reach(w) == DeviceWalk::Held ? "" : ".v[u]");
    }
    out_ += ");\n";
    for (int w = 0; w < count(); ++w) {
      if (window(w).stored) out_ += fmt::format("{0}{1}.x{2}.v[u] = y.y{2};\n", indent, group, w);
    }
  }

  // --- the walks ---------------------------------------------------------------------------------

  // A block's threads have neighbouring groups, so often that each thread has all of its own.
  void groups() {
    offsets();
    move(false);
    move(true);
    const int vector = p_.walk.vector, each = p_.walk.groups(), step = kDeviceThreads * vector;
    const std::string unroll =
        fmt::format("#pragma unroll\n  for (int k = 0; k < {}; ++k) {{\n", each);
    out_ += fmt::format("KERNEL({0}, A_{0}, {1}) {{\n", name_, kDeviceThreads);
    out_ += fmt::format("  const {0} first = ({0})blockIdx.x * {1} + threadIdx.x * {2};\n", index(),
                        step * each, vector);
    out_ += "  if (first >= p.n) return;\n";
    splats();
    out_ += fmt::format("  G_{} g[{}];\n{}", name_, each, unroll);
    // Beyond the end a thread reads its first group again.
    out_ += fmt::format("    const {} e = first + k * {};\n", index(), step);
    out_ += fmt::format("    read_{}(p, e < p.n ? e : first, g[k]);\n  }}\n{}", name_, unroll);
    out_ += fmt::format("#pragma unroll\n    for (int u = 0; u < {}; ++u) {{\n", vector);
    compute("g[k]", "      ");
    out_ +=
        fmt::format("    }}\n  }}\n{}    const {} e = first + k * {};\n", unroll, index(), step);
    out_ += fmt::format("    if (e < p.n) write_{}(p, e, g[k]);\n  }}\n", name_);
  }

  // A block has a square of the innermost dim and the one that other windows are dense along. These
  // are read along that one into shared memory, and from there across.
  void tiles() {
    out_ += fmt::format("BLOCK_KERNEL({0}, A_{0}, {1}) {{\n", name_, kDeviceThreads);
    for_turned([&](int w) {
      return fmt::format("  __shared__ {} tile{}[{}][{}];\n", memory(w), w, kDeviceTile,
                         kDeviceTile + 1);
    });
    find_tile();
    splats();
    out_ += fmt::format("  G_{} g[{}];\n", name_, kDeviceTile / kTileRows);
    tile_loop("across", "other");
    for_turned([&](int w) {
      return fmt::format("    tile{}[other][across] = *(const {}*)({});\n", w, memory(w),
                         in_tile(w));
    });
    out_ += "  }\n";
    tile_loop("other", "across");
    for (int w = 0; w < count(); ++w) {
      if (!window(w).loaded || splat(w) || reach(w) == DeviceWalk::Turned) continue;
      out_ += fmt::format("    g[k].x{}.v[0] = *(const {}*)({});\n", w, memory(w), in_tile(w));
    }
    out_ += "  }\n  __syncthreads();\n";
    tile_loop("other", "across");
    out_ += "    constexpr int u = 0;\n";
    for_turned(
        [&](int w) { return fmt::format("    g[k].x{0}.v[u] = tile{0}[across][other];\n", w); });
    compute("g[k]", "    ");
    for (int w = 0; w < count(); ++w) {
      if (!window(w).stored) continue;
      out_ += fmt::format("    *({}*)({}) = g[k].x{}.v[u];\n", memory(w), in_tile(w), w);
    }
    out_ += "  }\n";
  }

  template <class F> void for_turned(const F& text) {
    for (int w = 0; w < count(); ++w) {
      if (reach(w) == DeviceWalk::Turned) out_ += text(w);
    }
  }

  // Where the block's tile is, and the thread in it: `b<w>` is where its other dims begin.
  void find_tile() {
    const int last = p_.walk.ndim - 1, turned = p_.walk.turned;
    out_ += fmt::format("  const int across = threadIdx.x % {0}, down = threadIdx.x / {0};\n",
                        kDeviceTile);
    out_ += "  unsigned r = blockIdx.x;\n";
    take_apart("unsigned", "  ");
    out_ += fmt::format("  const long first_t = (long)j{1} * {0}, first_c = (long)j{2} * {0};\n",
                        kDeviceTile, turned, last);
    for (int w = 0; w < count(); ++w) {
      if (!by_strides(w)) continue;
      out_ += fmt::format("  char* const b{0} = p.a{0}", w);
      for (int d = 0; d < last; ++d) {
        if (d != turned) out_ += fmt::format(" + (long)j{} * p.s{}[{}]", d, w, d);
      }
      out_ += ";\n";
    }
  }

  // For each of the thread's elements, t in the turned dim and c in the innermost one.
  void tile_loop(const char* t, const char* c) {
    out_ +=
        fmt::format("#pragma unroll\n  for (int k = 0; k < {}; ++k) {{\n", kDeviceTile / kTileRows);
    out_ += fmt::format("    const int other = down + {} * k;\n", kTileRows);
    out_ += fmt::format("    const long t = first_t + {}, c = first_c + {};\n", t, c);
    out_ += fmt::format("    if (t >= p.size{} || c >= p.size{}) continue;\n", p_.walk.turned,
                        p_.walk.ndim - 1);
  }
  std::string in_tile(int w) const {
    return fmt::format("b{0} + t * p.s{0}[{1}] + c * p.s{0}[{2}]", w, p_.walk.turned,
                       p_.walk.ndim - 1);
  }
  static constexpr int kTileRows = kDeviceThreads / kDeviceTile;

  const PointwiseProgram& p_;
  const std::string& name_;
  std::string out_;
  std::vector<std::string> now_;  // By window: the register that holds it, in its own dtype.
  std::vector<bool> unit_;        // By window: it is known to lie in [-1, 1].
};

}  // namespace

std::string pointwise_kernel_text(const PointwiseProgram& p, const std::string& name) {
  return Text(p, name).run();
}

}  // namespace brrr
