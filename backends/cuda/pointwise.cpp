#include "backends/cuda/pointwise.h"

#include <algorithm>

#include "ops/device_pointwise.h"

namespace brrr::cuda {

namespace {

PointwiseProgram program_of(const PointwiseForm& f) {
  PointwiseProgram p;
  p.ndim = f.ndim;
  p.vector = f.vector;
  p.wide = f.wide;
  PointwiseProgram::Step step{f.op, f.compute, {}, {}};
  for (int k = 0; k < f.count(); ++k) {
    const bool out = k < f.n_out;
    std::vector<int>& operands = out ? step.out : step.in;
    if (f.reach[k] == PointwiseForm::Number) {
      operands.push_back(~static_cast<int>(p.numbers.size()));
      p.numbers.push_back({f.dtype[k], false});
    } else {
      operands.push_back(static_cast<int>(p.windows.size()));
      p.windows.push_back(
          {f.dtype[k], static_cast<PointwiseProgram::Reach>(f.reach[k]), !out, out});
    }
  }
  p.steps.push_back(std::move(step));
  return p;
}

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

void fill_arguments(const Iteration& it, const PointwiseForm& f, PointwiseWords& w) {
  for (int k = 0; k < f.count(); ++k) {
    if (!it.operands[k].number) w.push(it.operands[k].base);
  }
  for (int k = 0; k < f.count(); ++k) {
    if (it.operands[k].number) w.push(it.operands[k].scalar);
  }
  w.push(it.numel);
  for (int d = 0; d < f.ndim; ++d) w.push_dim(it.size[d]);
  for (int k = 0; f.ndim && k < f.count(); ++k) {
    const PointwiseOperand& o = it.operands[k];
    if (o.number) continue;
    const auto size = static_cast<int64_t>(itemsize(o.dtype));
    for (int d = 0; d < f.ndim; ++d) w.push(o.stride[d] * size);
  }
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
  return pointwise_kernel_text(program_of(form), "k");
}

void run_pointwise(OpCall& c) {
  Iteration it;
  Tensor copies[kMaxOperands];
  if (!pointwise_iteration(c, it, copies)) return;
  const PointwiseForm f = pointwise_form(*c.op, it);
  Function* k = find_kernel(f.key(), "k", 0, [&] { return pointwise_text(f); });
  PointwiseWords w;
  fill_arguments(it, f, w);
  const Grid grid{blocks_for(it.numel, kDeviceThreads, f.ndim ? kDeviceEach : f.vector)};
  launch(k, c.op->name, grid, kDeviceThreads, w.data(), w.bytes());
}

}  // namespace brrr::cuda
