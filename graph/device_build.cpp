// Building a DevicePlan: its kernels, and what has one address for its life.
#include <algorithm>
#include <bit>
#include <map>

#include "core/check.h"
#include "graph/device_plan.h"
#include "graph/group.h"

namespace brrr::graph {

static constexpr size_t kBlockAlign = 64;

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
      add_kernel(g.parts[0], l, names);
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

void DevicePlan::add_kernel(const Part& g, Launch& l, std::map<std::string, std::string>& names) {
  auto [p, values] = program_of(r_, g, schedule_);
  const int windows = static_cast<int>(p.windows.size());
  const program::Walk walk = plan_walk(p.space, p.windows.data(), windows);
  const auto [it, fresh] =
      names.emplace(cuda_text(p, walk, "k"), fmt::format("brrr_k{}", names.size()));
  if (fresh) source_ += cuda_text(p, walk, it->second);
  l.name = it->second;
  l.grid = {walk.blocks(p.space)};
  using program::Word;
  each_word(walk, p.space, p.windows.data(), windows, p.numbers.data(),
            static_cast<int>(p.numbers.size()), [&](Word w, int64_t value) {
              const auto k = static_cast<size_t>(w.which);
              if (w.kind == Word::Address) {
                l.addresses.emplace_back(l.words.size(), values[k]);
              } else if (w.kind == Word::Number && p.numbers[k].control) {
                l.controls.emplace_back(l.words.size(), static_cast<uint32_t>(value));
              }
              l.words.push(value);
            });
}

// What has one address for the plan's life.
void DevicePlan::allocate_fixed() {
  for (uint32_t st : r_.survivors) slots_.push_back(device_memory(r_.storages[st].bytes));
  block_memory_ = device_memory(block_bytes_);
  block_ = static_cast<char*>(block_memory_->data);
  parts_.reserve(host_data_.size() + 1);
  arena_ = device_.graphs->arena(memory_.arena_bytes);
  BRRR_CHECK(arena_ || !memory_.arena_bytes, "no device memory left for an arena of {} bytes",
             memory_.arena_bytes);
}

void DevicePlan::free_built() noexcept {
  if (graph_) device_.graphs->release(graph_);
  launches_.clear();
  if (module_) device_.unload(module_);
}

}  // namespace brrr::graph
