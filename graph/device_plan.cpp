// Replays on a GPU: all launches of a step are captured once and replayed as one launch.
//
// Memory is at fixed addresses: temporaries in the device's one arena, results in the plan's slots,
// and varying scalars (control words), host data and operand tables in a block that one copy before
// each replay refills. A result that a user still holds is copied away before the next replay
// overwrites it. An input at another address than when the step was captured is copied into a slot
// before the replay, and back after it if the step writes it; the first time that happens to an
// input the step is captured again, with the slot.

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

constexpr int64_t kVectorBytes = 16;  // A kernel's widest access, which must be aligned.
constexpr int kMaxFailures = 3;       // Failed captures before retries become rarer and rarer.

Ref<Storage> device_memory(size_t bytes) {
  auto s = Ref<Storage>::adopt(new_storage(kCUDA, bytes));
  if (bytes) allocate(*s);
  return s;
}

// Reductions take longer rows in pieces; row ops read theirs again for each fold.
constexpr Target kTarget{.takes = program::cuda_takes,
                         .calls_read_control = false,
                         .longest_row = program::kLongestPiece,
                         .longest_of_row_op = 1 << 17,
                         .worth_own_kernel = std::numeric_limits<double>::infinity(),
                         .kernel_bytes = 8 << 20,
                         .draw_block = 1,
                         .pads_rows = true};

class DevicePlan final : public DeviceKernels {
 public:
  DevicePlan(const Recording& r, const StepOptions& options, const std::vector<Replaced>& replaced)
      : DeviceKernels(r, options, kTarget) {
    // When a replay begins nothing needs the slots' contents: temporaries may live there.
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
    const std::lock_guard lock(lent_memory_mutex());
    slots_.clear();
  }

  void run(const Replay& now) override {
    // Also guards the arena: the work of two replays must not interleave in the queue.
    const std::lock_guard lock(lent_memory_mutex());
    thread_own<CopyBackError>() = {};
    preserve_results(now);
    bind(now.bindings);
    for (const External& x : externals_) {
      if (x.in_slot) device_.copy(x.slot_begin(), x.now + x.low, x.bytes());
    }
    if (!graph_) resolve();
    if (block_bytes_) upload(now.control);
    // An observer measures kernels one by one.
    const bool watched = context.observer != nullptr;
    const bool may_capture = failures_ < kMaxFailures || counts_.direct >= retry_at_;
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
      } catch (const std::exception& e) {  // The step is done; its other effects follow.
        CopyBackError& last = thread_own<CopyBackError>();
        std::snprintf(last.why, sizeof last.why, "%s", e.what());
      }
    }
    lend_results(now.survivors);
  }
  Device device() const override { return kCUDA; }
  bool holds(size_t survivor, const Storage* s) const override {
    std::lock_guard lock(lent_memory_mutex());  // Another thread may be replaying.
    return slots_[survivor]->lent_to.get() == s;
  }
  bool is_on_side_branch(uint32_t group) const override {
    return graph_ && branches_.count && branches_.beside[group];
  }
  void report_faults() const override {
    const std::string why = std::exchange(thread_own<CopyBackError>(), {}).why;
    BRRR_CHECK(why.empty(),
               "step: the step ran, but an input or state that it writes, at another address than "
               "before, was not updated: {}",
               why);
    if (synchronize_) device_.synchronize();
  }

 private:
  /// Why an output of the thread's last replay could not be copied back; "" if all were.
  struct CopyBackError {
    char why[400] = "";
  };
  /// What the step touches of an external storage, in bytes from the binding's beginning.
  struct External : Extent {
    bool in_slot = false;  ///< The captured kernels use the slot.
    /// Values that are the written windows, if none covers the whole extent: other threads may
    /// write between them.
    std::vector<uint32_t> windows;
    char* captured = nullptr;  ///< The binding's beginning when the step was captured.
    Ref<Storage> slot;
    char* now = nullptr;  ///< The binding's beginning in this call.
    size_t bytes() const { return static_cast<size_t>(high - low); }
    /// Where the extent lies in the slot: such that the binding's own beginning, which may lie
    /// outside of it, is aligned, as kernels expect.
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
      const auto is_whole = [&](uint32_t id) {
        const Value& v = r_.values[id];
        return static_cast<size_t>(v.numel * v.item()) == x.bytes();
      };
      if (std::ranges::any_of(x.windows, is_whole)) x.windows.clear();
    }
  }

  void copy_back(size_t k, const Binding& b) const {
    const External& x = externals_[k];
    if (x.windows.empty()) return device_.copy(x.now + x.low, x.slot_begin(), x.bytes());
    for (uint32_t id : x.windows) {
      const Value& v = r_.values[id];
      const auto window = [&](const Ref<Storage>& of, int64_t skipped_bytes) {
        of->refs.retain();
        Tensor t = placeholder(v, kNone, of.get());
        t.impl()->offset += skipped_bytes / v.item();
        return t;
      };
      const Tensor to = window(b.storage, b.base * external_item_[k]);
      const Tensor from = window(x.slot, x.slot_begin() - static_cast<char*>(x.slot->data) - x.low);
      copy_now(*to.impl(), *from.impl());
    }
  }

  // Allocates what has one address for the plan's life. Old gradients' memory becomes slots last,
  // when nothing can fail any more.
  void allocate_fixed(const void* step, const std::vector<Replaced>& replaced) {
    const std::lock_guard lock(lent_memory_mutex());
    FreeSlots free_slots(step);
    slots_.resize(r_.survivors.size());
    std::vector<std::pair<Storage*, Slot*>> adopted;
    for (const auto& [old, k, leaf] : replaced) {
      const size_t bytes = r_.storages[r_.survivors[k]].bytes;
      if (slots_[k]) continue;
      slots_[k] = free_slots.take(*old->storage, leaf, bytes);
      const Storage& s = *old->storage;
      // Adopts memory that the old gradient alone holds, if it has the slot's size.
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
    // From now on the slot's memory is lent to the old gradient, as after a replay.
    for (const auto& [old, slot] : adopted) {
      slot->lent_to = Ref<Storage>::share(old);
      slot->memory->data = old->data;
      old->owned = false;
      __atomic_store_n(&old->lent, true, __ATOMIC_RELEASE);
    }
  }

  // Gives results of the last replay that are still held memory of their own. A gradient that this
  // call replaces may stay: if anything fails before the replay is queued, it is the leaf's again.
  void preserve_results(const Replay& now) {
    replaced_.clear();
    for (const auto& r : now.replaced) replaced_.insert(r.old->storage);
    for (const auto& slot : slots_) {
      Storage* s = slot->lent_to.get();
      if (!s) continue;
      // Held by the old gradient and the slot only.
      if (s->refs.get() == 2 && replaced_.contains(s)) continue;
      if (s->lent && s->refs.get() > 1) {
        own_memory(*s);
        ++counts_.copied_out;
      }
      slot->lent_to.reset();
    }
  }

  // Finds this call's externals. One that has moved since the capture, or is not aligned, is to be
  // copied to a slot.
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

  // Uploads all that varies from call to call, in one copy.
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

  // Sets all addresses, for kernels about to be queued or captured.
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

  // By group: the ranges of memory that its kernels use, as bound.
  std::vector<std::vector<Use>> uses() const {
    std::vector<std::vector<Use>> all(launches_.size());
    for (uint32_t g = 0; g < all.size(); ++g) {
      r_.each_access(schedule_.groups[g].instrs, [&](const Access& a) {
        const uint32_t st = r_.value(a.value).storage;
        if (!bound_[st]) return;  // It stays in registers.
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

  // Drops the side branch the second time: two branches may need more memory outside the plan.
  void note_failure(const std::exception& e) {
    if (++failures_ > 1) branches_ = {};
    retry_at_ = 4 * (counts_.direct + 1);
    counts_.failure = e.what();
  }

  // A failed capture has run nothing: the call is then queued kernel by kernel. What it lacked
  // (code to be loaded, memory to be allocated) is often there the next time.
  void capture() {
    const auto start = Clock::now();
    try {
      const std::vector<device_link::Point> points(branches_.count);  // Before the capture begins.
      device_queue::begin_capture();
      launch_branches(points, uses());
      graph_ = device_queue::end_capture(&counts_.nodes);
      counts_.graph_bytes = device_queue::bytes_of(graph_);
      counts_.beside = branches_.count;
      ++counts_.captures;
      failures_ = 0;
    } catch (const std::exception& e) {  // Of the system's, too: the capture must end.
      device_queue::abandon_capture();
      note_failure(e);
    }
    counts_.capture_seconds += seconds_since(start);
  }

  // A failed launch has run nothing either.
  void launch_graph() {
    try {
      device_queue::launch(graph_);
    } catch (const Error& e) {
      note_failure(e);
      device_queue::release(std::exchange(graph_, nullptr));
    }
  }

  // A step that fails between two kernels must change nothing: what it writes is saved first.
  void launch_directly(const std::vector<Binding>& bindings) {
    UndoLog undo;
    for (size_t k = 0; k < externals_.size(); ++k) {
      const External& x = externals_[k];
      if (is_written(k) && !x.in_slot && x.bytes()) undo.save(*bindings[k].storage);
    }
    for (const auto& slot : slots_) {
      if (slot->lent_to && slot->lent_to->lent) own_memory(*slot->lent_to);
    }
    launch_all();
  }

  void lend_results(Storage* const* survivors) {
    for (size_t k = 0; k < slots_.size(); ++k) {
      Storage& s = *survivors[k];
      slots_[k]->lent_to.reset();
      slots_[k]->of_gradient = s.gradient;
      if (s.data) {  // It has memory already.
        device_.copy(s.data, slots_[k]->memory->data, s.bytes);
        continue;
      }
      s.data = slots_[k]->memory->data;
      s.owned = false;
      s.lent = true;
      // Copies small results (a loss) to the host now: a late read must not wait for later steps.
      if (s.bytes <= kEarlyBytes && !s.gradient) {
        s.early = device_queue::copy_out(s.data, s.bytes);
        s.early_version = s.version;
      }
      slots_[k]->lent_to = Ref<Storage>::share(&s);
    }
  }

  DeviceGraph* graph_ = nullptr;
  std::vector<External> externals_;
  std::vector<HostPart> parts_;               // Of the block: control words, host data, tables.
  std::vector<std::shared_ptr<Slot>> slots_;  // By survivor.
  AddressSet replaced_;                       // Storages of gradients that this call replaces.
  Ref<Storage> block_memory_;
  int failures_ = 0;       // Failed captures and launches since the last capture.
  uint64_t retry_at_ = 0;  // The count of direct replays at which capture is retried.
  const bool synchronize_ = std::getenv("BRRR_SYNC_AFTER_REPLAY") != nullptr;  // After each replay.
};

}  // namespace

std::unique_ptr<Plan> make_device_plan(const Recording& r, const StepOptions& options,
                                       const std::vector<Replaced>& replaced) {
  return std::make_unique<DevicePlan>(r, options, replaced);
}

}  // namespace brrr::graph
