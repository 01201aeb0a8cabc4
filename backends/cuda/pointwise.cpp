#include "backends/cuda/pointwise.h"

#include <bit>

namespace brrr::cuda {

namespace {

using namespace program;

// A call's operands, as a program has them.
struct Operands {
  Space space;
  Window windows[kMostPointwise];
  Number numbers[kMostPointwise];
  int n_windows = 0, n_numbers = 0;

  explicit Operands(const Iteration& it) {
    space.ndim = it.ndim;
    std::copy_n(it.size, it.ndim, space.size);
    for (int k = 0; k < it.count(); ++k) {
      const PointwiseOperand& o = it.operands[k];
      if (o.number) {
        numbers[n_numbers++] = {o.dtype, o.scalar};
        continue;
      }
      Window& w = windows[n_windows++];
      w.dtype = o.dtype;
      if (o.made) w.source = Window::Index;
      w.loaded = k >= it.n_out;
      w.stored = k < it.n_out;
      w.address = reinterpret_cast<uintptr_t>(o.base);
      std::copy_n(o.stride, it.ndim, w.stride);
    }
  }
};

PointwiseForm form_of(const OpDef& op, const Iteration& it, Operands& o) {
  PointwiseForm f;
  f.op = &op;
  f.compute = it.compute;
  f.n_out = it.n_out;
  f.n_in = it.n_in;
  f.walk = plan_walk(o.space, o.windows, o.n_windows);
  f.walk.notes = op.check_values != nullptr;
  for (int k = 0, w = 0; k < f.count(); ++k) {
    f.dtype[k] = it.operands[k].dtype;
    f.reach[k] = PointwiseForm::kNumber;
    if (!it.operands[k].number) f.reach[k] = o.windows[w++].reach;
  }
  return f;
}

}  // namespace

KernelKey PointwiseForm::key() const {
  KernelKey key{op,
                static_cast<uint64_t>(walk.ndim) | static_cast<uint64_t>(walk.wide) << 4 |
                    static_cast<uint64_t>(walk.in_rows) << 5 |
                    static_cast<uint64_t>(std::countr_zero(static_cast<unsigned>(walk.vector)))
                        << 6 |
                    static_cast<uint64_t>(walk.turned + 1) << 9,
                static_cast<uint64_t>(compute) << 60};
  static_assert(12 + 3 * kMostPointwise <= 64);
  for (int k = 0; k < count(); ++k) {
    key.variant |= static_cast<uint64_t>(reach[k]) << (12 + 3 * k);
    key.more |= static_cast<uint64_t>(dtype[k]) << (3 * k);
  }
  return key;
}

PointwiseForm pointwise_form(const OpDef& op, const Iteration& it) {
  Operands o(it);
  return form_of(op, it, o);
}

std::string pointwise_text(const PointwiseForm& f) {
  Program p;
  p.space.ndim = 1;
  Step step{f.op, f.compute, {}, {}};
  for (int k = 0; k < f.count(); ++k) {
    const bool out = k < f.n_out, made = k - f.n_out >= f.op->pointwise->n_in;
    if (f.reach[k] == PointwiseForm::kNumber) {
      step.in.push_back(~static_cast<int>(p.numbers.size()));
      p.numbers.push_back({f.dtype[k]});
    } else {
      (out ? step.out : step.in).push_back(static_cast<int>(p.windows.size()));
      p.windows.push_back({.dtype = f.dtype[k],
                           .loaded = !out,
                           .stored = out,
                           .source = made ? Window::Index : Window::Memory,
                           .reach = static_cast<Window::Reach>(f.reach[k])});
    }
  }
  append_steps(p, {step}, false);
  const std::string text = cuda_text(p, f.walk, "k");
  return f.walk.notes ? with_support(text) : text;
}

void run_pointwise(OpCall& c) {
  Iteration it;
  Tensor copies[kMaxOperands];
  if (!pointwise_iteration(c, it, copies)) return;
  Operands o(it);
  const PointwiseForm f = form_of(*c.op, it, o);
  Function* k = find_kernel(f.key(), "k", 0, [&] { return pointwise_text(f); });
  Words words;
  each_word(f.walk, o.space, o.windows, o.n_windows, o.numbers, o.n_numbers,
            [&](Word w, int64_t value) { words.push(w, value, c); });
  launch(k, c.op->name, {f.walk.blocks(o.space)}, kDeviceThreads, words.data(), words.bytes());
}

}  // namespace brrr::cuda
