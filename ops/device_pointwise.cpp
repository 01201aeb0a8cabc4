#include "ops/device_pointwise.h"

#include <bit>

#include "ops/spelling.h"

namespace brrr {

namespace {

class Text {
 public:
  Text(const PointwiseProgram& p, const std::string& name) : p_(p), name_(name) {}

  std::string run() {
    arguments();
    element();
    out_ += fmt::format("KERNEL({0}, A_{0}, {1}) {{\n", name_, kDeviceThreads);
    if (p_.ndim)
      strided();
    else
      dense();
    return out_ + "}\n";
  }

 private:
  using Program = PointwiseProgram;
  int count() const { return static_cast<int>(p_.windows.size()); }
  const Program::Window& window(int w) const { return p_.windows[static_cast<size_t>(w)]; }
  const char* memory(int w) const { return spelling(window(w).dtype).element; }
  bool splat(int w) const { return window(w).reach == Program::Splat; }
  bool passed(int w) const { return window(w).loaded || window(w).stored; }

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
    for (int d = 0; d < p_.ndim; ++d) out_ += fmt::format("  long size{0}, mul{0}, shift{0};\n", d);
    for (int w = 0; p_.ndim && w < count(); ++w) {
      if (passed(w)) out_ += fmt::format("  long s{}[{}];\n", w, p_.ndim);
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

  // `element(p, ...)` of what `name` gives for each window that is loaded.
  template <class F> std::string call(const F& name) const {
    std::string text = fmt::format("element_{}(p", name_);
    for (int w = 0; w < count(); ++w) {
      if (window(w).loaded) text += ", " + name(w);
    }
    return text + ")";
  }

  void dense() {
    out_ += fmt::format("  const long i = ((long)blockIdx.x * {} + threadIdx.x) * {};\n",
                        kDeviceThreads, p_.vector);
    for (int w = 0; w < count(); ++w) {
      if (!window(w).loaded || !splat(w)) continue;
      out_ += fmt::format("  const {0} x{1} = *(const {0}*)p.a{1};\n", memory(w), w);
    }
    auto at = [&](int w) {
      return splat(w) ? fmt::format("x{}", w) : fmt::format("((const {}*)p.a{})[e]", memory(w), w);
    };
    if (p_.vector > 1) vectors();
    out_ += fmt::format("  for (long e = i; e < p.n && e < i + {}; ++e) {{\n", p_.vector);
    out_ += fmt::format("    const Y_{} y = {};\n", name_, call(at));
    for (int w = 0; w < count(); ++w) {
      if (window(w).stored) {
        out_ += fmt::format("    (({0}*)p.a{1})[e] = y.y{1};\n", memory(w), w);
      }
    }
    out_ += "  }\n";
  }

  void vectors() {
    out_ += fmt::format("  if (i + {} <= p.n) {{\n", p_.vector);
    auto pack = [&](int w) { return fmt::format("Pack<{}, {}>", memory(w), p_.vector); };
    for (int w = 0; w < count(); ++w) {
      if (!passed(w) || splat(w)) continue;
      out_ += window(w).loaded ? fmt::format("    {0} v{1} = *(const {0}*)(({2}*)p.a{1} + i);\n",
                                             pack(w), w, memory(w))
                               : fmt::format("    {} v{};\n", pack(w), w);
    }
    out_ += fmt::format("    for (int u = 0; u < {}; ++u) {{\n", p_.vector);
    out_ += fmt::format("      const Y_{} y = {};\n", name_, call([&](int w) {
                          return splat(w) ? fmt::format("x{}", w) : fmt::format("v{}.v[u]", w);
                        }));
    for (int w = 0; w < count(); ++w) {
      if (window(w).stored) out_ += fmt::format("      v{0}.v[u] = y.y{0};\n", w);
    }
    out_ += "    }\n";
    for (int w = 0; w < count(); ++w) {
      if (window(w).stored) {
        out_ += fmt::format("    *({0}*)(({1}*)p.a{2} + i) = v{2};\n", pack(w), memory(w), w);
      }
    }
    out_ += "    return;\n  }\n";
  }

  // The element's number taken apart, the last dim fastest.
  void strided() {
    const char* index = p_.wide ? "unsigned long" : "unsigned";
    out_ += fmt::format("  for (int u = 0; u < {}; ++u) {{\n", kDeviceEach);
    out_ += fmt::format("    {0} r = ({0})blockIdx.x * {1} + u * {2} + threadIdx.x;\n", index,
                        kDeviceEach * kDeviceThreads, kDeviceThreads);
    out_ += "    if (r >= p.n) return;\n";
    for (int d = p_.ndim - 1; d > 0; --d) {
      const std::string quotient =
          p_.wide ? fmt::format("r / p.size{}", d)
                  : fmt::format("(unsigned)(((unsigned long)r * p.mul{0}) >> p.shift{0})", d);
      out_ += fmt::format("    const {0} q{1} = {2}, j{1} = r - q{1} * ({0})p.size{1};\n", index, d,
                          quotient);
      out_ += fmt::format("    r = q{};\n", d);
    }
    out_ += fmt::format("    const {} j0 = r;\n", index);
    auto address = [&](int w) {
      std::string text = fmt::format("p.a{}", w);
      for (int d = 0; d < p_.ndim; ++d) text += fmt::format(" + (long)j{} * p.s{}[{}]", d, w, d);
      return text;
    };
    out_ += fmt::format("    const Y_{} y = {};\n", name_, call([&](int w) {
                          return fmt::format("*(const {}*)({})", memory(w), address(w));
                        }));
    for (int w = 0; w < count(); ++w) {
      if (window(w).stored) {
        out_ += fmt::format("    *({}*)({}) = y.y{};\n", memory(w), address(w), w);
      }
    }
    out_ += "  }\n";
  }

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

// r / size for r < 2^31 is r * mul >> shift (Granlund and Montgomery, "Division by invariant
// integers using multiplication", PLDI 1994).
void PointwiseWords::push_dim(int64_t size) {
  const int bits = size <= 1 ? 0 : 64 - std::countl_zero(static_cast<uint64_t>(size - 1));
  const bool narrow = bits <= 31;
  push(size);
  push(narrow ? static_cast<int64_t>((uint64_t{1} << (31 + bits)) / static_cast<uint64_t>(size) + 1)
              : int64_t{0});
  push(int64_t{narrow ? 31 + bits : 0});
}

}  // namespace brrr
