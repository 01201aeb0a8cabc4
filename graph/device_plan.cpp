#include "graph/device_plan.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdlib>
#include <map>
#include <mutex>

#include "core/check.h"
#include "graph/windows.h"

namespace brrr::graph {

namespace {

constexpr int64_t kVectorBytes = 16;
constexpr int kAttempts = 3;  // Captures of a step before it is queued kernel by kernel for good.

// Replays share the arena: what one queues must not be torn apart by another thread's.
std::mutex& replaying() {
  static std::mutex& m = *new std::mutex;
  return m;
}

int64_t item(const Value& v) {
  return static_cast<int64_t>(itemsize(v.dtype));
}

// The kernel of a fused group. `numbers` gets, for each number, the control word it comes from or
// kNone, and its value.
PointwiseProgram program_of(const Recording& r, const Group& g, const Schedule& s,
                            const Windows& found,
                            std::vector<std::pair<uint32_t, int64_t>>& numbers) {
  PointwiseProgram p;
  p.fast = s.fast;
  const int64_t n = numel_of(g.space);
  bool strided = found.ndim > 1;
  int64_t widest = 1;
  for (const Window& w : found.all) {
    const int64_t step = found.ndim == 1 ? w.stride[0] : 0;
    const bool dense = step == 1 || n == 1;
    strided |= w.touched() && !dense && (step != 0 || w.stored);
    p.windows.push_back({r.value(w.value).dtype,
                         dense ? PointwiseProgram::Dense : PointwiseProgram::Splat, w.loaded,
                         w.stored});
    if (w.touched() && dense) widest = std::max(widest, item(r.value(w.value)));
  }
  if (strided) {
    p.ndim = found.ndim;
    p.wide = n >= int64_t{1} << 31;
    for (auto& w : p.windows) w.reach = PointwiseProgram::Strided;
  } else {
    p.vector = static_cast<int>(kVectorBytes / widest);
    for (const Window& w : found.all) {
      const Value& v = r.value(w.value);
      const bool aligned = v.offset * item(v) % (p.vector * item(v)) == 0;
      if (w.touched() && w.stride[0] == 1 && !aligned) p.vector = 1;
    }
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

// --- building ------------------------------------------------------------------------------------

DevicePlan::DevicePlan(const Recording& r, const StepOptions& options, StepStats& stats)
    : Plan(r, options, stats), device_(backend(DeviceType::CUDA)) {
  // Whatever a slot held is nobody's any more when a replay begins.
  memory_ = plan_memory(r_, schedule_, r_.survivors);
#ifndef NDEBUG
  verify_memory(r_, schedule_, memory_);
#endif
  handed_.resize(r.survivors.size());
  dying_.resize(r.survivors.size());
  find_externals();
  try {
    generate_kernels(stats);
    allocate_fixed();
  } catch (...) {
    free_fixed();
    throw;
  }
}

DevicePlan::~DevicePlan() {
  for (size_t k = 0; k < handed_.size(); ++k) {
    Storage* s = handed_[k].get();
    if (s && s->lent && s->refs.get() > 1) {  // The slot is the holder's from now on.
      own_memory(*s, std::exchange(slots_[k], nullptr));
    }
  }
  handed_.clear();
  free_fixed();
}

void DevicePlan::find_externals() {
  externals_.resize(r_.externals.size());
  std::vector<bool> seen(externals_.size());
  for (const Value& v : r_.values) {
    const StorageInfo& info = r_.storages[v.storage];
    if (info.origin != Origin::External || v.numel == 0) continue;
    External& x = externals_[info.maker];
    int64_t low = v.offset, high = v.offset + 1;
    for (int d = 0; d < v.ndim; ++d) {
      (v.strides[d] < 0 ? low : high) += (v.sizes[d] - 1) * v.strides[d];
    }
    x.low = seen[info.maker] ? std::min(x.low, low * item(v)) : low * item(v);
    x.high = seen[info.maker] ? std::max(x.high, high * item(v)) : high * item(v);
    seen[info.maker] = true;
  }
  for (const Instr& i : r_.instrs) {
    for (int k = 0; k < i.n_out; ++k) {
      const StorageInfo& info = r_.storages[r_.value(r_.out(i)[k]).storage];
      if (i.into && info.origin == Origin::External) externals_[info.maker].written = true;
    }
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
    BRRR_CHECK(!i.attrs.dynamic || i.op->kind == OpKind::Random,
               "{} has attributes that vary from step to step, which its kernel cannot read on the "
               "device",
               i.op->name);
    l.call = bound_call(i);
  }
  if (source_.empty()) return;
  module_ = device_.build(source_, report_);
  stats.build_seconds += report_.seconds;
  stats.build_cached = report_.cached;
  for (Launch& l : launches_) {
    if (!l.call) l.fn = device_.symbol(module_, l.name.c_str());
  }
}

void DevicePlan::add_kernel(const Group& g, Launch& l, std::map<std::string, std::string>& names) {
  const Windows found(r_, g, schedule_);
  std::vector<std::pair<uint32_t, int64_t>> numbers;
  const PointwiseProgram p = program_of(r_, g, schedule_, found, numbers);
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
  l.words.push(n);
  for (int d = 0; d < p.ndim; ++d) l.words.push_dim(found.size[d]);
  for (const Window& w : found.all) {
    if (!p.ndim || !w.touched()) continue;
    for (int d = 0; d < p.ndim; ++d) l.words.push(w.stride[d] * item(r_.value(w.value)));
  }
  l.grid = {blocks_for(n, kDeviceThreads, p.ndim ? kDeviceEach : p.vector)};
}

// What has one address for the plan's life.
void DevicePlan::allocate_fixed() {
  auto take = [&](size_t bytes) {
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
  for (uint32_t st : r_.survivors) slots_.push_back(take(r_.storages[st].bytes));
  control_ = take(r_.control.size() * sizeof(int64_t));
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
  if (control_) device_.deallocate(control_, r_.control.size() * sizeof(int64_t));
  if (module_) device_.unload(module_);
}

// --- replaying -----------------------------------------------------------------------------------

bool DevicePlan::may_reuse(const TensorImpl& old, size_t) {
  for (size_t k = 0; k < handed_.size(); ++k) {
    // Its holders are that tensor and this plan.
    if (handed_[k].get() == old.storage) dying_[k] = old.storage->refs.get() == 2;
  }
  return false;
}

uint32_t DevicePlan::holders(const Storage* s) const {
  return static_cast<uint32_t>(
      std::count_if(handed_.begin(), handed_.end(), [&](const auto& h) { return h.get() == s; }));
}

// What is still held of the last replay's results gets memory of its own.
void DevicePlan::keep_results() {
  for (size_t k = 0; k < handed_.size(); ++k) {
    Storage* s = handed_[k].get();
    if (s && s->lent && s->refs.get() > 1 && !dying_[k]) {
      own_memory(*s);
      ++counts_.moved_away;
    }
    dying_[k] = false;
    handed_[k].reset();
  }
}

// Where the externals are in this call; what is not where the captured kernels look goes to a slot.
void DevicePlan::bind(const std::vector<Binding>& bindings) {
  for (size_t k = 0; k < bindings.size(); ++k) {
    const Binding& b = bindings[k];
    External& x = externals_[k];
    x.now = static_cast<char*>(b.storage->data) + b.base * static_cast<int64_t>(external_item_[k]);
    if (x.bytes() == 0) continue;
    const bool aligned = reinterpret_cast<uintptr_t>(x.now) % kVectorBytes == 0;
    const bool moved = graph_ && x.now != x.captured;
    if (!x.in_slot && (!aligned || moved)) {
      x.in_slot = true;
      if (graph_) device_.graphs->release(std::exchange(graph_, nullptr));
    }
    if (!x.in_slot) continue;
    if (!x.slot) {
      x.slot = static_cast<char*>(device_.allocate(x.bytes() + kVectorBytes));
      BRRR_CHECK(x.slot, "no device memory left for a copy of an input of {} bytes", x.bytes());
    }
    ++counts_.copied_in;
  }
}

// Addresses of everything, for kernels about to be queued or captured.
void DevicePlan::resolve() {
  for (size_t k = 0; k < externals_.size(); ++k) {
    External& x = externals_[k];
    x.captured = x.now;
    if (bound_[r_.externals[k]]) {
      bound_[r_.externals[k]]->data = x.in_slot ? x.slot_begin() - x.low : x.now;
    }
  }
  for (size_t k = 0; k < slots_.size(); ++k) bound_[r_.survivors[k]]->data = slots_[k];
  for (uint32_t st = 0; st < r_.storages.size(); ++st) {
    if (memory_.offset[st] < 0) continue;
    const uint32_t host = memory_.host[st];
    char* const base = host == kNone ? arena_ : static_cast<char*>(bound_[host]->data);
    bound_[st]->data = base + memory_.offset[st];
  }
  for (Launch& l : launches_) {
    for (const auto& [word, id] : l.addresses) {
      const Value& v = r_.value(id);
      l.words.set(word, static_cast<char*>(bound_[v.storage]->data) + v.offset * item(v));
    }
    for (const auto& [word, control] : l.controls) {
      l.words.set(word, control_ + control * sizeof(int64_t));
    }
    if (l.call && !l.call->dynamic.empty()) {
      l.call->call.control = control_ + l.call->dynamic.front().second * sizeof(int64_t);
    }
  }
}

void DevicePlan::launch_all() {
  for (Launch& l : launches_) {
    if (l.call) {
      device_.launch(l.call->call);
    } else {
      device_.graphs->run(l.fn, l.name.c_str(), l.grid, kDeviceThreads, l.words.data(),
                          l.words.bytes());
    }
  }
}

// A capture that is spoilt has run nothing: the call is then queued kernel by kernel. What spoilt
// it (code that had to be loaded, memory that had to be taken) is often there the next time.
void DevicePlan::capture() {
  const auto start = std::chrono::steady_clock::now();
  const GraphBackend& g = *device_.graphs;
  try {
    g.begin();
    launch_all();
    graph_ = g.end(&counts_.nodes);
    counts_.graph_bytes = g.bytes(graph_);
    ++counts_.captures;
    spoilt_ = 0;
  } catch (const Error& e) {
    g.abandon();
    ++spoilt_;
    counts_.failure = e.what();
  }
  counts_.capture_seconds +=
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// A launch that is refused has run nothing either.
void DevicePlan::launch_graph() {
  try {
    device_.graphs->launch(graph_);
  } catch (const Error& e) {
    ++spoilt_;
    counts_.failure = e.what();
    device_.graphs->release(std::exchange(graph_, nullptr));
  }
}

void DevicePlan::hand_out(Storage* const* survivors) {
  for (size_t k = 0; k < slots_.size(); ++k) {
    Storage& s = *survivors[k];
    if (s.data) {  // It has memory already.
      device_.copy(s.data, slots_[k], s.bytes);
      continue;
    }
    s.data = slots_[k];
    s.owned = false;
    s.lent = true;
    // Results that are read to be printed: reading one late must not wait for later steps.
    if (s.bytes <= kEarlyBytes && !s.gradient) {
      s.early = device_.graphs->copy_out(s.data, s.bytes);
      s.early_version = s.version;
    }
    handed_[k] = Ref<Storage>::share(&s);
  }
}

void DevicePlan::run(const std::vector<Binding>& bindings, const int64_t* control,
                     Storage* const* survivors) {
  const std::lock_guard lock(replaying());
  keep_results();
  bind(bindings);
  for (const External& x : externals_) {
    if (x.in_slot) device_.copy(x.slot_begin(), x.now + x.low, x.bytes());
  }
  if (!r_.control.empty()) {
    device_.copy_from_host(control_, control, r_.control.size() * sizeof(int64_t));
  }
  if (!graph_) {
    resolve();
    if (spoilt_ < kAttempts) capture();
  }
  if (graph_) launch_graph();
  counts_.launches = graph_ ? 1 : 0;
  if (!graph_) {
    launch_all();
    ++counts_.direct;
  }
  for (const External& x : externals_) {
    if (x.in_slot && x.written) device_.copy(x.now + x.low, x.slot_begin(), x.bytes());
  }
  hand_out(survivors);
  static const bool settle = std::getenv("BRRR_SYNC_AFTER_REPLAY") != nullptr;
  if (settle) device_.synchronize();
}

}  // namespace brrr::graph
