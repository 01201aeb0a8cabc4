// Building a DevicePlan: its kernels, and what has one address for its life.
#include <algorithm>
#include <bit>
#include <map>

#include "core/check.h"
#include "graph/device_plan.h"
#include "graph/windows.h"

namespace brrr::graph {

namespace {

constexpr size_t kBlockAlign = 64;

// Larger strides of what is written go outside, as in an eager call.
void put_written_inside(Windows& found) {
  const auto written =
      std::find_if(found.all.begin(), found.all.end(), [](const Window& w) { return w.stored; });
  if (written == found.all.end()) return;
  for (int i = 1; i < found.ndim; ++i) {
    for (int j = i; j > 0 && written->stride[j - 1] < written->stride[j]; --j) {
      std::swap(found.size[j - 1], found.size[j]);
      for (Window& w : found.all) std::swap(w.stride[j - 1], w.stride[j]);
    }
  }
}

// How a group's kernel meets its windows. Storages begin at multiples of kVectorBytes.
std::vector<WalkOperand> operands_of(const Recording& r, const Windows& found) {
  std::vector<WalkOperand> all;
  for (const Window& w : found.all) {
    const Value& v = r.value(w.value);
    all.push_back(
        {v.dtype, w.loaded, w.stored, static_cast<uintptr_t>(v.offset * item(v)), w.stride});
  }
  return all;
}

// The kernel of a fused group. `numbers` gets, for each number, the control word it comes from or
// kNone, and its value.
PointwiseProgram program_of(const Recording& r, const Group& g, const Schedule& s,
                            const Windows& found, const DeviceWalk& walk,
                            const std::vector<WalkOperand>& operands,
                            std::vector<std::pair<uint32_t, int64_t>>& numbers) {
  PointwiseProgram p;
  p.fast = s.fast;
  p.walk = walk;
  for (const WalkOperand& o : operands) {
    p.windows.push_back({o.dtype, o.reach, o.loaded, o.stored});
  }
  for (uint32_t at : g.instrs) {
    const Instr& i = r.instrs[at];
    PointwiseProgram::Step step{i.op, compute_dtype(r, i), {}, {}};
    for (int k = 0, word = 0; k < i.n_in; ++k) {
      const uint32_t id = r.in(i)[k];
      if (id != kNone) {
        step.in.push_back(static_cast<int>(found.of(id)));
        continue;
      }
      const bool dynamic = i.attrs.dynamic >> word & 1;
      const auto before = static_cast<uint16_t>(i.attrs.dynamic & ((1u << word) - 1));
      step.in.push_back(~static_cast<int>(p.numbers.size()));
      p.numbers.push_back({i.attrs.kind(k) == 3 ? kFloat64 : kInt64, dynamic});
      numbers.emplace_back(
          dynamic ? i.control + static_cast<uint32_t>(std::popcount(before)) : kNone,
          i.attrs.v[word]);
      ++word;
    }
    for (int k = 0; k < i.n_out; ++k) step.out.push_back(static_cast<int>(found.of(r.out(i)[k])));
    p.steps.push_back(std::move(step));
  }
  return p;
}

}  // namespace

void DevicePlan::find_externals() {
  for (uint32_t st : r_.externals) {
    External& x = externals_.emplace_back();
    x.written = r_.writes(st);
    if (r_.storages[st].device == kCPU) continue;
    const Extent touched = r_.extent(st);
    x.low = touched.low;
    x.high = touched.high;
  }
}

void DevicePlan::generate_kernels(StepStats& stats) {
  std::map<std::string, std::string> names;  // Text -> name: equal kernels are one.
  for (const Group& g : schedule_.groups) {
    Launch& l = launches_.emplace_back();
    if (g.fused) {
      add_kernel(g, l, names);
      continue;
    }
    const Instr& i = r_.instrs[g.instrs[0]];
    if (is_host_data(i)) {
      l.host_data = static_cast<int>(host_data_.size());
      add_host_data(i);
      continue;
    }
    BRRR_CHECK(!i.attrs.dynamic || i.op->kind == OpKind::Random,
               "{} has attributes that vary from step to step, which its kernel cannot read on the "
               "device",
               i.op->name);
    l.call = bound_call(i);
    l.site = device_.graphs->site(r_.paths[i.path]);
  }
  if (source_.empty()) return;
  module_ = device_.build(source_, report_);
  stats.build_seconds += report_.seconds;
  stats.build_cached = report_.cached;
  for (Launch& l : launches_) {
    if (!l.name.empty()) l.fn = device_.symbol(module_, l.name.c_str());
  }
}

// Nothing is launched for them: they are used where the upload puts them.
void DevicePlan::add_host_data(const Instr& i) {
  const Value& v = r_.value(r_.out(i)[0]);
  const size_t bytes = static_cast<size_t>(v.numel * item(v));
  block_bytes_ = (block_bytes_ + kBlockAlign - 1) / kBlockAlign * kBlockAlign;
  host_data_.push_back({i.control, v.storage, {nullptr, block_bytes_, bytes}});
  block_bytes_ += bytes;
}

void DevicePlan::add_kernel(const Group& g, Launch& l, std::map<std::string, std::string>& names) {
  Windows found(r_, g, schedule_);
  put_written_inside(found);
  std::vector<WalkOperand> operands = operands_of(r_, found);
  const int count = static_cast<int>(operands.size());
  const DeviceWalk walk = plan_walk(found.ndim, found.size, operands.data(), count);
  std::vector<std::pair<uint32_t, int64_t>> numbers;
  const PointwiseProgram p = program_of(r_, g, schedule_, found, walk, operands, numbers);
  const auto [it, fresh] =
      names.emplace(pointwise_kernel_text(p, "k"), fmt::format("brrr_k{}", names.size()));
  if (fresh) source_ += pointwise_kernel_text(p, it->second);
  l.name = it->second;
  size_t word = 0;
  for (const Window& w : found.all) {
    if (!w.touched()) continue;
    l.addresses.emplace_back(word++, w.value);
    l.words.push(int64_t{0});
  }
  for (const auto& [control, value] : numbers) {
    if (control != kNone) l.controls.emplace_back(word, control);
    l.words.push(value);
    ++word;
  }
  const int64_t n = numel_of(g.space);
  l.words.push_walk(walk, n, found.size, operands.data(), count);
  l.grid = {walk.blocks(n, found.size)};
}

// What has one address for the plan's life.
void DevicePlan::allocate_fixed() {
  auto allocate = [&](size_t bytes) {
    if (bytes == 0) return static_cast<char*>(nullptr);
    auto* p = static_cast<char*>(device_.allocate(bytes));
    if (!p) {
      Storage missing;
      missing.device = kCUDA;
      missing.bytes = bytes;
      out_of_memory(missing);
    }
    return p;
  };
  for (uint32_t st : r_.survivors) slots_.push_back(allocate(r_.storages[st].bytes));
  block_ = allocate(block_bytes_);
  parts_.reserve(host_data_.size() + 1);
  arena_ = device_.graphs->arena(memory_.arena_bytes);
  BRRR_CHECK(arena_ || !memory_.arena_bytes, "no device memory left for an arena of {} bytes",
             memory_.arena_bytes);
}

void DevicePlan::free_fixed() noexcept {
  if (graph_) device_.graphs->release(graph_);
  launches_.clear();
  for (size_t k = 0; k < slots_.size(); ++k) {
    if (slots_[k]) device_.deallocate(slots_[k], r_.storages[r_.survivors[k]].bytes);
  }
  for (External& x : externals_) {
    if (x.slot) device_.deallocate(x.slot, x.bytes() + kVectorBytes);
  }
  if (block_) device_.deallocate(block_, block_bytes_);
  if (module_) device_.unload(module_);
}

}  // namespace brrr::graph
