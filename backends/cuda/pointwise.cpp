#include "backends/cuda/pointwise.h"

#include <algorithm>
#include <bit>

#include "core/check.h"
#include "ops/spelling.h"

namespace brrr::cuda {

namespace {

constexpr int kEach = 4;  // Elements of a thread in a strided walk: loads in flight.

// --- text ----------------------------------------------------------------------------------------

class PointwiseText {
 public:
  explicit PointwiseText(const PointwiseForm& f) : f_(f) {}

  std::string run() {
    arguments();
    element();
    out_ += fmt::format("KERNEL(k, A, {}) {{\n", kPointwiseThreads);
    if (f_.ndim)
      strided();
    else
      dense();
    return out_ + "}\n";
  }

 private:
  const char* memory(int k) const { return spelling(f_.dtype[k]).element; }
  bool number(int k) const { return f_.reach[k] == PointwiseForm::Number; }
  bool out(int k) const { return k < f_.n_out; }

  void arguments() {
    out_ += "struct A {\n";
    for (int k = 0; k < f_.count(); ++k) {
      if (!number(k)) out_ += fmt::format("  char* a{};\n", k);
    }
    for (int k = 0; k < f_.count(); ++k) {
      if (number(k)) out_ += fmt::format("  {} a{};\n", memory(k), k);
    }
    out_ += "  long n;\n";
    for (int d = 0; d < f_.ndim; ++d) out_ += fmt::format("  long size{0}, mul{0}, shift{0};\n", d);
    for (int k = 0; f_.ndim && k < f_.count(); ++k) {
      if (!number(k)) out_ += fmt::format("  long s{}[{}];\n", k, f_.ndim);
    }
    out_ += "};\n";
  }

  // One element: `x<k>` as they lie in memory to the members `y<k>` of the result.
  void element() {
    out_ += "struct Y {\n";
    for (int k = 0; k < f_.n_out; ++k) out_ += fmt::format("  {} y{};\n", memory(k), k);
    out_ += "};\nBRRR_VX Y element(const A& p";
    for (int k = f_.n_out; k < f_.count(); ++k) {
      if (!number(k)) out_ += fmt::format(", const {} x{}", memory(k), k);
    }
    out_ += ") {\n";
    SymText text(spelling(f_.compute).element, "t", "  ");
    SymText* before = std::exchange(SymText::current, &text);
    Sym in[kMaxOperands];
    for (int i = 0; i < f_.n_in; ++i) {
      const int k = f_.n_out + i;
      const std::string from = number(k)
                                   ? fmt::format("splat(p.a{})", k)
                                   : fill(spelling(f_.dtype[k]).load, fmt::format("load(&x{})", k));
      out_ += fmt::format("  const {} v{} = {};\n", spelling(f_.compute).vector, i,
                          to_compute(from, f_.dtype[k], f_.compute));
      in[i] = Sym(text.operand(fmt::format("v{}", i), -1));
    }
    const PointwiseInfo& info = *f_.op->pointwise;
    int out[kMaxOutputs];
    info.emit(in, out);
    SymText::current = before;
    out_ += text.text() + "  Y y;\n";
    for (int k = 0; k < f_.n_out; ++k) {
      const std::string x =
          from_compute(text.name(out[k]), f_.compute, info.mask_out[k], f_.dtype[k], false);
      out_ += fmt::format("  store(&y.y{}, {});\n", k, fill(spelling(f_.dtype[k]).store, x));
    }
    out_ += "  return y;\n}\n";
  }

  // `element(p, ...)` of the inputs that `name` gives for operand k.
  template <class F> std::string call(const F& name) const {
    std::string text = "element(p";
    for (int k = f_.n_out; k < f_.count(); ++k) {
      if (!number(k)) text += ", " + name(k);
    }
    return text + ")";
  }

  void dense() {
    out_ += fmt::format("  const long i = ((long)blockIdx.x * {} + threadIdx.x) * {};\n",
                        kPointwiseThreads, f_.vector);
    for (int k = f_.n_out; k < f_.count(); ++k) {
      if (f_.reach[k] != PointwiseForm::Splat) continue;
      out_ += fmt::format("  const {0} x{1} = *(const {0}*)p.a{1};\n", memory(k), k);
    }
    auto at = [&](int k, const char* i) {
      return f_.reach[k] == PointwiseForm::Splat
                 ? fmt::format("x{}", k)
                 : fmt::format("((const {}*)p.a{})[{}]", memory(k), k, i);
    };
    if (f_.vector > 1) vectors();
    out_ += fmt::format("  for (long e = i; e < p.n && e < i + {}; ++e) {{\n", f_.vector);
    out_ += fmt::format("    const Y y = {};\n", call([&](int k) { return at(k, "e"); }));
    for (int k = 0; k < f_.n_out; ++k) {
      out_ += fmt::format("    (({}*)p.a{})[e] = y.y{};\n", memory(k), k, k);
    }
    out_ += "  }\n";
  }

  void vectors() {
    out_ += fmt::format("  if (i + {} <= p.n) {{\n", f_.vector);
    for (int k = 0; k < f_.count(); ++k) {
      if (f_.reach[k] != PointwiseForm::Dense) continue;
      const std::string pack = fmt::format("Pack<{}, {}>", memory(k), f_.vector);
      if (out(k))
        out_ += fmt::format("    {} v{};\n", pack, k);
      else
        out_ += fmt::format("    const {0} v{1} = *(const {0}*)(({2}*)p.a{1} + i);\n", pack, k,
                            memory(k));
    }
    out_ += fmt::format("    for (int u = 0; u < {}; ++u) {{\n", f_.vector);
    out_ += fmt::format("      const Y y = {};\n", call([&](int k) {
                          const bool splat = f_.reach[k] == PointwiseForm::Splat;
                          return splat ? fmt::format("x{}", k) : fmt::format("v{}.v[u]", k);
                        }));
    for (int k = 0; k < f_.n_out; ++k) out_ += fmt::format("      v{0}.v[u] = y.y{0};\n", k);
    out_ += "    }\n";
    for (int k = 0; k < f_.n_out; ++k) {
      out_ += fmt::format("    *(Pack<{0}, {1}>*)(({0}*)p.a{2} + i) = v{2};\n", memory(k),
                          f_.vector, k);
    }
    out_ += "    return;\n  }\n";
  }

  // The element number taken apart, the last dim fastest.
  void strided() {
    const char* index = f_.wide ? "unsigned long" : "unsigned";
    out_ += fmt::format("  for (int u = 0; u < {}; ++u) {{\n", kEach);
    out_ += fmt::format("    {} r = ({})blockIdx.x * {} + u * {} + threadIdx.x;\n", index, index,
                        kEach * kPointwiseThreads, kPointwiseThreads);
    out_ += "    if (r >= p.n) return;\n";
    for (int d = f_.ndim - 1; d > 0; --d) {
      const std::string quotient =
          f_.wide ? fmt::format("r / p.size{}", d)
                  : fmt::format("(unsigned)(((unsigned long)r * p.mul{0}) >> p.shift{0})", d);
      out_ += fmt::format("    const {0} q{1} = {2}, j{1} = r - q{1} * ({0})p.size{1};\n", index, d,
                          quotient);
      out_ += fmt::format("    r = q{};\n", d);
    }
    out_ += fmt::format("    const {} j0 = r;\n", index);
    auto address = [&](int k) {
      std::string text = fmt::format("p.a{}", k);
      for (int d = 0; d < f_.ndim; ++d) text += fmt::format(" + (long)j{} * p.s{}[{}]", d, k, d);
      return text;
    };
    out_ += fmt::format("    const Y y = {};\n", call([&](int k) {
                          return fmt::format("*(const {}*)({})", memory(k), address(k));
                        }));
    for (int k = 0; k < f_.n_out; ++k) {
      out_ += fmt::format("    *({}*)({}) = y.y{};\n", memory(k), address(k), k);
    }
    out_ += "  }\n";
  }

  const PointwiseForm& f_;
  std::string out_;
};

// --- calls ---------------------------------------------------------------------------------------

// How operand k of the walk is reached, looking at it alone.
PointwiseForm::Reach reach_of(const Iteration& it, const PointwiseOperand& o) {
  if (o.number) return PointwiseForm::Number;
  const bool splat = std::all_of(o.stride, o.stride + it.ndim, [](int64_t s) { return s == 0; });
  if (splat && it.numel > 1) return PointwiseForm::Splat;
  return it.ndim == 1 && (o.stride[0] == 1 || it.numel == 1) ? PointwiseForm::Dense
                                                             : PointwiseForm::Strided;
}

// The widest access that every dense operand's address and dtype allow, 16 bytes at most.
int vector_of(const Iteration& it, const PointwiseForm& f) {
  size_t largest = 1;
  for (int k = 0; k < f.count(); ++k) {
    if (f.reach[k] == PointwiseForm::Dense) largest = std::max(largest, itemsize(f.dtype[k]));
  }
  const size_t vector = 16 / largest;
  for (int k = 0; k < f.count(); ++k) {
    if (f.reach[k] != PointwiseForm::Dense) continue;
    const size_t bytes = vector * itemsize(f.dtype[k]);
    if (reinterpret_cast<uintptr_t>(it.operands[k].base) % bytes) return 1;
  }
  return static_cast<int>(vector);
}

// The kernel's argument, word by word.
class Words {
 public:
  void push(int64_t w) { words_[n_++] = w; }
  const void* data() const { return words_; }
  size_t bytes() const { return static_cast<size_t>(n_) * sizeof words_[0]; }

 private:
  int64_t words_[kMostPointwise * (1 + kMaxDims) + 1 + 3 * kMaxDims];
  int n_ = 0;
};

// r / size for r < 2^31 is r * mul >> shift (Granlund and Montgomery, "Division by invariant
// integers using multiplication", PLDI 1994).
void push_divisor(Words& w, int64_t size) {
  const int bits = size <= 1 ? 0 : 64 - std::countl_zero(static_cast<uint64_t>(size - 1));
  w.push(size);
  w.push(bits > 31 ? 0
                   : static_cast<int64_t>(
                         (uint64_t{1} << (31 + bits)) / static_cast<uint64_t>(size) + 1));
  w.push(31 + bits);
}

Words arguments_of(const Iteration& it, const PointwiseForm& f) {
  Words w;
  for (int k = 0; k < f.count(); ++k) {
    if (!it.operands[k].number) w.push(reinterpret_cast<int64_t>(it.operands[k].base));
  }
  for (int k = 0; k < f.count(); ++k) {
    if (it.operands[k].number) w.push(it.operands[k].scalar);
  }
  w.push(it.numel);
  for (int d = 0; d < f.ndim; ++d) push_divisor(w, it.size[d]);
  for (int k = 0; f.ndim && k < f.count(); ++k) {
    const PointwiseOperand& o = it.operands[k];
    if (o.number) continue;
    const auto size = static_cast<int64_t>(itemsize(o.dtype));
    for (int d = 0; d < f.ndim; ++d) w.push(o.stride[d] * size);
  }
  return w;
}

}  // namespace

KernelKey PointwiseForm::key() const {
  KernelKey key{op,
                static_cast<uint64_t>(ndim) | static_cast<uint64_t>(wide) << 4 |
                    static_cast<uint64_t>(vector) << 5 | static_cast<uint64_t>(compute) << 10,
                0};
  for (int k = 0; k < count(); ++k) {
    key.variant |= static_cast<uint64_t>(reach[k]) << (14 + 2 * k);
    key.more |= static_cast<uint64_t>(dtype[k]) << (3 * k);
  }
  return key;
}

PointwiseForm pointwise_form(const OpDef& op, const Iteration& it) {
  PointwiseForm f;
  f.op = &op;
  f.compute = it.compute;
  f.n_out = it.n_out;
  f.n_in = it.n_in;
  bool strided = false;
  for (int k = 0; k < f.count(); ++k) {
    f.dtype[k] = it.operands[k].dtype;
    f.reach[k] = reach_of(it, it.operands[k]);
    strided |=
        f.reach[k] == PointwiseForm::Strided || (k < f.n_out && f.reach[k] != PointwiseForm::Dense);
  }
  if (!strided) {
    f.vector = vector_of(it, f);
    return f;
  }
  f.ndim = it.ndim;
  f.wide = it.numel >= int64_t{1} << 31;
  for (int k = 0; k < f.count(); ++k) {
    if (f.reach[k] != PointwiseForm::Number) f.reach[k] = PointwiseForm::Strided;
  }
  return f;
}

std::string pointwise_text(const PointwiseForm& form) {
  return PointwiseText(form).run();
}

void run_pointwise(OpCall& c) {
  Iteration it;
  Tensor copies[kMaxOperands];
  if (!pointwise_iteration(c, it, copies)) return;
  const PointwiseForm f = pointwise_form(*c.op, it);
  Function* k = find_kernel(f.key(), "k", 0, [&] { return pointwise_text(f); });
  const Words w = arguments_of(it, f);
  const Grid grid{blocks_for(it.numel, kPointwiseThreads, f.ndim ? kEach : f.vector)};
  launch(k, c.op->name, grid, kPointwiseThreads, w.data(), w.bytes());
}

}  // namespace brrr::cuda
