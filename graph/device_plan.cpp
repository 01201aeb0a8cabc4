// Replays on a GPU: all launches of a step, captured once, are one launch.
//
// Memory is at fixed addresses: temporaries in the device's one arena, results in slots of the
// plan's own, and in a block that one copy refills before each replay the numbers that vary (the
// control words) and what the step takes from host memory. What a user still holds of the last
// replay's results is copied away before the next one overwrites it. An input that lies elsewhere
// than when the step was captured is copied into a slot before, and back afterwards if the step
// writes it; the first time that happens to an input the step is captured anew, with the slot.

#include <cstdio>
#include <cstdlib>
#include <limits>
#include <mutex>
#include <utility>

#include "core/address_set.h"
#include "core/context.h"
#include "core/device_link.h"
#include "graph/device_kernels.h"
#include "graph/device_slots.h"
#include "graph/walker.h"

namespace brrr::graph {

namespace {

constexpr int64_t kVectorBytes = 16;  // Of a kernel's widest access, which is aligned.
constexpr int kAttempts = 3;          // Captures that fail before they are tried ever more rarely.

Ref<Storage> device_memory(size_t bytes) {
  auto s = Ref<Storage>::adopt(new_storage(kCUDA, bytes));
  if (bytes) allocate(*s);
  return s;
}

// Longer rows a reduction takes in pieces; row ops read theirs again for each fold.
constexpr Target kTarget{.takes = program::cuda_takes,
                         .calls_read_control = false,
                         .longest_row = program::kLongestPiece,
                         .longest_of_row_op = 1 << 17,
                         .worth_own_kernel = std::numeric_limits<double>::infinity(),
                         .kernel_bytes = 8 << 20,
                         .drawn_together = 1,
                         .lays_rows = true};

class DevicePlan final : public DeviceKernels {
 public:
  DevicePlan(const Recording& r, const StepOptions& options, const std::vector<Replaced>& replaced)
      : DeviceKernels(r, options, kTarget) {
    // Whatever a slot held is nobody's any more when a replay begins.
    MemoryRules rules;
    for (uint32_t st : r_.survivors) rules.rooms.push_back({r_.storages[st].bytes, {{st, 0}}});
    choose_branches(rules);
    generate_kernels();
    rules.scratch = scratch_;
    place_temporaries(rules);
    find_externals();
    build_kernels();
    allocate_fixed(&options, replaced);
    counts_.upload_bytes = block_bytes_;
  }
  ~DevicePlan() override {
    if (graph_) device_queue::release(graph_);
    const std::lock_guard lock(lending());
    slots_.clear();
  }

  void run(const Replay& now) override {
    // Also for the arena: what one replay queues must not be torn apart by another thread's.
    const std::lock_guard lock(lending());
    thread_own<Refused>() = {};
    keep_results(now);
    bind(now.bindings);
    for (const External& x : externals_) {
      if (x.in_slot) device_.copy(x.slot_begin(), x.now + x.low, x.bytes());
    }
    if (!graph_) resolve();
    if (block_bytes_) upload(now.control);
    // Who looks on sees kernels, one by one.
    const bool watched = context.observer != nullptr;
    const bool may_capture = spoilt_ < kAttempts || counts_.direct >= retry_at_;
    if (!graph_ && !watched && may_capture) capture();
    if (graph_ && !watched) launch_graph();
    const bool direct = watched || !graph_;
    counts_.launches = direct ? 0 : 1;
    if (direct) launch_directly(now.bindings);
    counts_.direct += direct && !watched;
    for (size_t k = 0; k < externals_.size(); ++k) {
      if (!externals_[k].in_slot || !is_written(k)) continue;
      try {
        copy_back(k, now.bindings[k]);
      } catch (const std::exception& e) {  // The step is done, and all else of it goes on.
        Refused& last = thread_own<Refused>();
        std::snprintf(last.why, sizeof last.why, "%s", e.what());
      }
    }
    hand_out(now.survivors);
  }
  Device device() const override { return kCUDA; }
  bool holds(size_t survivor, const Storage* s) const override {
    std::lock_guard lock(lending());  // Another thread may be replaying.
    return slots_[survivor]->handed.get() == s;
  }
  bool is_beside(uint32_t group) const override {
    return graph_ && branches_.count && branches_.beside[group];
  }
  void report_faults() const override {
    const std::string why = std::exchange(thread_own<Refused>(), {}).why;
    BRRR_CHECK(why.empty(),
               "step: it is done, but an input or state that it writes, and that lies elsewhere "
               "than before, is not up to date: {}",
               why);
    if (wait_) device_.synchronize();
  }

 private:
  /// Why the thread's last replay, which is done, could not be copied back; "" if it was.
  struct Refused {
    char why[400] = "";
  };
  /// What the step touches of an external storage, in bytes from where the binding begins.
  struct External : Extent {
    bool in_slot = false;  ///< The captured kernels use the slot.
    /// Values of the windows that are written, where none is all of it: other threads may write
    /// between them.
    std::vector<uint32_t> windows;
    char* captured = nullptr;  ///< Where the binding began when the step was captured.
    Ref<Storage> slot;
    char* now = nullptr;  ///< Where it begins in this call.
    size_t bytes() const { return static_cast<size_t>(high - low); }
    /// Where the bytes lie in the slot: such that the binding's own beginning, which may be outside
    /// it, is aligned, as kernels expect of it.
    char* slot_begin() const { return static_cast<char*>(slot->data) + ((low % 16) + 16) % 16; }
  };

  bool is_written(size_t external) const { return r_.written[r_.externals[external]]; }

  void find_externals() {
    for (uint32_t st : r_.externals) {
      External& x = externals_.emplace_back();
      if (r_.storages[st].device == kCPU) continue;
      static_cast<Extent&>(x) = r_.extent(st);
      for (const Access& a : r_.accesses[st]) {
        if (a.write && !std::ranges::count(x.windows, a.value)) x.windows.push_back(a.value);
      }
      const auto is_all = [&](uint32_t id) {
        const Value& v = r_.values[id];
        return static_cast<size_t>(v.numel * v.item()) == x.bytes();
      };
      if (std::ranges::any_of(x.windows, is_all)) x.windows.clear();
    }
  }

  void copy_back(size_t k, const Binding& b) const {
    const External& x = externals_[k];
    if (x.windows.empty()) return device_.copy(x.now + x.low, x.slot_begin(), x.bytes());
    for (uint32_t id : x.windows) {
      const Value& v = r_.values[id];
      const auto window = [&](const Ref<Storage>& of, int64_t bytes_skipped) {
        of->refs.retain();
        Tensor t = placeholder(v, kNone, of.get());
        t.impl()->offset += bytes_skipped / v.item();
        return t;
      };
      const Tensor to = window(b.storage, b.base * external_item_[k]);
      const Tensor from = window(x.slot, x.slot_begin() - static_cast<char*>(x.slot->data) - x.low);
      copy_now(*to.impl(), *from.impl());
    }
  }

  // What has one address for the plan's life. Nothing fails any more once an old gradient's memory
  // is a slot.
  void allocate_fixed(const void* step, const std::vector<Replaced>& replaced) {
    const std::lock_guard lock(lending());
    FreeSlots there(step);
    slots_.resize(r_.survivors.size());
    std::vector<std::pair<Storage*, Slot*>> adopted;
    for (const auto& [old, k, leaf] : replaced) {
      const size_t bytes = r_.storages[r_.survivors[k]].bytes;
      if (slots_[k]) continue;
      slots_[k] = there.take(*old->storage, leaf, bytes);
      const Storage& s = *old->storage;
      // One that is nobody else's and as the slot is to be.
      if (!slots_[k] && s.refs.get() == 1 && s.owned && s.data && s.device == kCUDA &&
          s.bytes == bytes) {
        slots_[k] = make_slot(step, Ref<Storage>::adopt(new_storage(kCUDA, bytes)));
        adopted.emplace_back(old->storage, slots_[k].get());
      }
      if (slots_[k]) slots_[k]->leaf = leaf;
    }
    for (size_t k = 0; k < slots_.size(); ++k) {
      if (slots_[k]) continue;
      slots_[k] = make_slot(step, device_memory(r_.storages[r_.survivors[k]].bytes));
    }
    block_memory_ = device_memory(block_bytes_);
    block_ = static_cast<char*>(block_memory_->data);
    arena_ = device_queue::arena(memory_.arena_bytes);
    BRRR_CHECK(arena_ || !memory_.arena_bytes, "no device memory left for an arena of {} bytes",
               memory_.arena_bytes);
    // From now on the slot's memory is lent to the gradient, as after a replay.
    for (const auto& [old, slot] : adopted) {
      slot->handed = Ref<Storage>::share(old);
      slot->memory->data = old->data;
      old->owned = false;
      __atomic_store_n(&old->lent, true, __ATOMIC_RELEASE);
    }
  }

  // What is still held of the last replay's results gets memory of its own. A gradient that is
  // about to be replaced may stay: until the replay is queued it is the leaf's again if something
  // fails.
  void keep_results(const Replay& now) {
    replaced_.clear();
    for (const auto& r : now.replaced) replaced_.insert(r.old->storage);
    for (const auto& slot : slots_) {
      Storage* s = slot->handed.get();
      if (!s) continue;
      // Its holders are the old gradient and the slot.
      if (s->refs.get() == 2 && replaced_.contains(s)) continue;
      if (s->lent && s->refs.get() > 1) {
        own_memory(*s);
        ++counts_.moved_away;
      }
      slot->handed.reset();
    }
  }

  // Where the externals are in this call; what is not where the captured kernels look goes to a
  // slot.
  void bind(const std::vector<Binding>& bindings) {
    for (size_t k = 0; k < bindings.size(); ++k) {
      const Binding& b = bindings[k];
      External& x = externals_[k];
      x.now = static_cast<char*>(b.storage->data) + b.base * external_item_[k];
      if (x.bytes() == 0) continue;
      const bool aligned = reinterpret_cast<uintptr_t>(x.now) % kVectorBytes == 0;
      const bool moved = graph_ && x.now != x.captured;
      if (!x.in_slot && (!aligned || moved)) {
        x.in_slot = true;
        if (graph_) device_queue::release(std::exchange(graph_, nullptr));
      }
      if (!x.in_slot) continue;
      if (!x.slot) x.slot = device_memory(x.bytes() + kVectorBytes);
      ++counts_.copied_in;
    }
  }

  // What varies from call to call, in one copy.
  void upload(const int64_t* control) {
    parts_.clear();
    parts_.push_back({control, 0, r_.control.size() * sizeof(int64_t)});
    for (HostData& d : host_data_) {
      d.part.from = reinterpret_cast<const void*>(control[d.control]);
      parts_.push_back(d.part);
    }
    for (const Launch& l : launches_) {
      if (!l.table) continue;
      for (const Batch& b : l.batches) {
        parts_.push_back({b.words.data(), b.at, b.words.size() * sizeof(int64_t)});
      }
    }
    device_queue::upload(block_, parts_.data(), parts_.size());
  }

  // Addresses of everything, for kernels about to be queued or captured.
  void resolve() {
    for (size_t k = 0; k < externals_.size(); ++k) {
      External& x = externals_[k];
      x.captured = x.now;
      if (bound_[r_.externals[k]]) {
        bound_[r_.externals[k]]->data = x.in_slot ? x.slot_begin() - x.low : x.now;
      }
    }
    for (size_t k = 0; k < slots_.size(); ++k) {
      bound_[r_.survivors[k]]->data = slots_[k]->memory->data;
    }
    bind_temporaries();
    for (const HostData& d : host_data_) {
      if (!r_.survives(d.storage)) bound_[d.storage]->data = block_ + d.part.at;
    }
    for (Launch& l : launches_) {
      for (Batch& b : l.batches) {
        for (const Patch& p : b.patches) {
          b.words[p.argument] = reinterpret_cast<int64_t>(place_of(p, block_));
        }
      }
      if (l.call && !l.call->dynamic.empty()) {
        l.call->call.control = block_ + l.call->dynamic.front().second * sizeof(int64_t);
      }
    }
  }

  // By group: what of memory its kernels use, where it is bound.
  std::vector<std::vector<Use>> uses() const {
    std::vector<std::vector<Use>> all(launches_.size());
    for (uint32_t g = 0; g < all.size(); ++g) {
      r_.each_access(schedule_.groups[g].instrs, [&](const Access& a) {
        const uint32_t st = r_.value(a.value).storage;
        if (!bound_[st]) return;  // It passes in registers.
        const auto* const begin = static_cast<const char*>(bound_[st]->data);
        const StorageInfo& info = r_.storages[st];
        const bool external = info.origin == Origin::External;
        const External* const x = external ? &externals_[info.maker] : nullptr;
        const int64_t low = x ? x->low : 0, high = x ? x->high : static_cast<int64_t>(info.bytes);
        all[g].push_back({begin + low, begin + high, a.write, st, a.value});
      });
      const MemoryPlan::Piece& own = memory_.scratch[g];
      if (own.bytes) all[g].push_back({address(own), address(own) + own.bytes, true});
    }
    return all;
  }

  // Two branches take more memory beside the planned than one, where they take any.
  void note_spoilt(const std::exception& e) {
    if (++spoilt_ > 1) branches_ = {};
    retry_at_ = 4 * (counts_.direct + 1);
    counts_.failure = e.what();
  }

  // A capture that is spoilt has run nothing: the call is then queued kernel by kernel. What spoilt
  // it (code that had to be loaded, memory that had to be taken) is often there the next time.
  void capture() {
    const auto start = Clock::now();
    try {
      const std::vector<device_link::Point> points(branches_.count);  // A capture makes none.
      device_queue::begin_capture();
      launch_branches(points, uses());
      graph_ = device_queue::end_capture(&counts_.nodes);
      counts_.graph_bytes = device_queue::bytes_of(graph_);
      counts_.beside = branches_.count;
      ++counts_.captures;
      spoilt_ = 0;
    } catch (const std::exception& e) {  // Of the system's, too: what follows is not to be noted.
      device_queue::abandon_capture();
      note_spoilt(e);
    }
    counts_.capture_seconds += seconds_since(start);
  }

  // A launch that is refused has run nothing either.
  void launch_graph() {
    try {
      device_queue::launch(graph_);
    } catch (const Error& e) {
      note_spoilt(e);
      device_queue::release(std::exchange(graph_, nullptr));
    }
  }

  // Of a step that fails between two kernels nothing may be left: what it writes is kept before.
  void launch_directly(const std::vector<Binding>& bindings) {
    UndoLog undo;
    for (size_t k = 0; k < externals_.size(); ++k) {
      const External& x = externals_[k];
      if (is_written(k) && !x.in_slot && x.bytes()) undo.save(*bindings[k].storage);
    }
    for (const auto& slot : slots_) {
      if (slot->handed && slot->handed->lent) own_memory(*slot->handed);
    }
    launch_all();
  }

  void hand_out(Storage* const* survivors) {
    for (size_t k = 0; k < slots_.size(); ++k) {
      Storage& s = *survivors[k];
      slots_[k]->handed.reset();
      slots_[k]->of_gradient = s.gradient;
      if (s.data) {  // It has memory already.
        device_.copy(s.data, slots_[k]->memory->data, s.bytes);
        continue;
      }
      s.data = slots_[k]->memory->data;
      s.owned = false;
      s.lent = true;
      // Results that are read to be printed: reading one late must not wait for later steps.
      if (s.bytes <= kEarlyBytes && !s.gradient) {
        s.early = device_queue::copy_out(s.data, s.bytes);
        s.early_version = s.version;
      }
      slots_[k]->handed = Ref<Storage>::share(&s);
    }
  }

  DeviceGraph* graph_ = nullptr;
  std::vector<External> externals_;
  std::vector<HostPart> parts_;               // Of the block: the control words, host data, tables.
  std::vector<std::shared_ptr<Slot>> slots_;  // By survivor.
  AddressSet replaced_;                       // Storages of gradients that a call replaces.
  Ref<Storage> block_memory_;
  int spoilt_ = 0;         // Captures that failed.
  uint64_t retry_at_ = 0;  // The direct replay before which a capture is tried again.
  const bool wait_ = std::getenv("BRRR_SYNC_AFTER_REPLAY") != nullptr;  // After each replay.
};

}  // namespace

std::unique_ptr<Plan> make_device_plan(const Recording& r, const StepOptions& options,
                                       const std::vector<Replaced>& replaced) {
  return std::make_unique<DevicePlan>(r, options, replaced);
}

}  // namespace brrr::graph
