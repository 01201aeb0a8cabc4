#include "backends/cuda/pointwise.h"

#include <bit>

#include "ops/kinds/device_pointwise.h"

namespace brrr::cuda {

namespace {

PointwiseProgram program_of(const PointwiseForm& f) {
  PointwiseProgram p;
  p.walk = f.walk;
  PointwiseProgram::Step step{f.op, f.compute, {}, {}};
  for (int k = 0; k < f.count(); ++k) {
    const bool out = k < f.n_out;
    std::vector<int>& operands = out ? step.out : step.in;
    if (f.reach[k] == DeviceWalk::Number) {
      operands.push_back(~static_cast<int>(p.numbers.size()));
      p.numbers.push_back({f.dtype[k], false});
    } else {
      operands.push_back(static_cast<int>(p.windows.size()));
      p.windows.push_back({f.dtype[k], f.reach[k], !out, out});
    }
  }
  p.steps.push_back(std::move(step));
  return p;
}

// --- calls ---------------------------------------------------------------------------------------

// The form, and for each operand what the walk makes of it.
PointwiseForm form_of(const OpDef& op, const Iteration& it, WalkOperand* all) {
  PointwiseForm f;
  f.op = &op;
  f.compute = it.compute;
  f.n_out = it.n_out;
  f.n_in = it.n_in;
  for (int k = 0; k < f.count(); ++k) {
    const PointwiseOperand& o = it.operands[k];
    const bool out = k < f.n_out;
    all[k] = {o.dtype, !out && !o.number, out, reinterpret_cast<uintptr_t>(o.base), o.stride};
  }
  f.walk = plan_walk(it.ndim, it.size, all, f.count());
  for (int k = 0; k < f.count(); ++k) {
    f.dtype[k] = it.operands[k].dtype;
    f.reach[k] = it.operands[k].number ? DeviceWalk::Number : all[k].reach;
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
  WalkOperand all[kMostPointwise];
  return form_of(op, it, all);
}

std::string pointwise_text(const PointwiseForm& form) {
  return pointwise_kernel_text(program_of(form), "k");
}

void run_pointwise(OpCall& c) {
  Iteration it;
  Tensor copies[kMaxOperands];
  if (!pointwise_iteration(c, it, copies)) return;
  WalkOperand all[kMostPointwise];
  const PointwiseForm f = form_of(*c.op, it, all);
  Function* k = find_kernel(f.key(), "k", 0, [&] { return pointwise_text(f); });
  PointwiseWords w;
  for (int i = 0; i < f.count(); ++i) {
    if (!it.operands[i].number) w.push(it.operands[i].base);
  }
  for (int i = 0; i < f.count(); ++i) {
    if (it.operands[i].number) w.push(it.operands[i].scalar);
  }
  w.push_walk(f.walk, it.numel, it.size, all, f.count());
  launch(k, c.op->name, {f.walk.blocks(it.numel, it.size)}, kDeviceThreads, w.data(), w.bytes());
}

}  // namespace brrr::cuda
