// Replays on the CPU: runs the kernels in order, after patching the addresses of their operands.
#include <algorithm>

#include "core/check.h"
#include "core/context.h"
#include "graph/plan.h"
#include "graph/walker.h"
#include "ops/kinds/strided_matrix.h"
#include "ops/program/cpu.h"

namespace brrr::graph {

namespace {

Target target_of(const StepOptions& options) {
  // About one and a half times an L2 cache, because a value is read soon after it is written;
  // smaller parts cost more in matrix products than accesses to the next cache level do.
  constexpr int64_t default_bytes = 3 << 19, most = int64_t{1} << 40;
  const int64_t asked = options.part_bytes ? options.part_bytes : default_bytes;
  const int64_t each = std::clamp<int64_t>(asked, 0, most);
  return {.part_bytes = each * backend(DeviceType::CPU).properties().multiprocessors};
}

class HostPlan final : public Plan {
 public:
  HostPlan(const Recording& r, const StepOptions& options) : Plan(r, options, target_of(options)) {
    scratch_.resize(schedule_.groups.size());
    add_launches();
    build_kernels();
    find_failures();
    for (uint32_t st : r_.survivors) {
      safe_to_overwrite_.push_back(schedule_.life(r_, st).first > last_fallible_);
    }
    plan_with_rooms();
    find_part_patches();
  }

  void run(const Replay& now) override {
    UndoLog undo;
    reuse_gradients(now);
    try {
      check_rows(now.survivors);
      allocate_survivors(now.survivors);
      // The arena is allocated for each replay: all entries and eager code share its memory.
      auto arena = Ref<Storage>::adopt(new_storage(kCPU, memory_.arena_bytes));
      if (memory_.arena_bytes) allocate(*arena);
      bind(now, static_cast<char*>(arena->data));
      size_t next = 0;
      for (; next < checks_.size() && checks_[next].after < 0; ++next) check(checks_[next]);
      for (uint32_t k : undo_externals_) undo.save(*now.bindings[k].storage);
      launch_all(now.control, next);
    } catch (...) {
      for (auto& [from, to] : reused_) from->data = std::exchange(to->data, nullptr);
      throw;
    }
  }
  Device device() const override { return kCPU; }
  const std::vector<bool>* safe_to_overwrite() const override { return &safe_to_overwrite_; }

 private:
  using KernelFn = void (*)(char* const* arguments, int64_t begin, int64_t end);
  /// One part of a group that a kernel runs on.
  struct Operands {
    size_t first_argument;
    int64_t extent;
  };
  struct Launch {
    uint32_t group = 0;
    std::vector<std::unique_ptr<LibraryCall>> calls;  ///< By part of a strip; empty: generated.
    std::string name;                                 ///< The following of a generated kernel.
    KernelFn fn = nullptr, last = nullptr;            ///< `last` runs once, after all of `fn`.
    bool has_last = false;
    std::vector<Operands> table;
    int64_t extent = 0, grain = 1;  ///< Of the whole table.
  };
  /// A check of values that an instruction's kernel reads (OpDef::check_values).
  struct Check {
    std::unique_ptr<LibraryCall> call;
    int64_t after;  ///< The group after which it runs; -1: before the replay starts.
  };

  void add_launches() {
    for (uint32_t g = 0; g < schedule_.groups.size(); ++g) {
      const Group& group = schedule_.groups[g];
      if (!group.fused) {
        Launch& l = launches_.emplace_back();
        l.group = g;
        const Instr& i = r_.instrs[group.instrs[0]];
        const Strip* const strip = schedule_.strips.of(g);
        PartOf of;
        if (strip) of = {&schedule_.strips, 0, strip->parts};
        for (; of.part < of.parts; ++of.part) l.calls.push_back(make_call(r_, i, bound_, of));
        scratch_[g] = scratch_bytes(l.calls[0]->call);
        continue;
      }
      for (const Part& part : group.parts) add_kernel(g, part);
    }
    generated_ = launches_.size() - kernels_;
    kernels_ += generated_;
  }

  void add_kernel(uint32_t group, const Part& part) {
    const GroupProgram made = program_of(r_, part, schedule_);
    const program::CpuKernel text = program::cpu_kernel(made.program);
    for (const std::string& f : text.functions) {
      std::string& shared = source_.shared;
      if (shared.find(f) == shared.npos) shared += f;
    }
    const std::string name = named(part, [&](const std::string& as) {
      std::string all = fmt::format("extern \"C\" void {}{}\n", as, text.body);
      if (!text.last.empty()) all += fmt::format("extern \"C\" void {}_last{}\n", as, text.last);
      return all;
    });
    // Parts of one group with the same text are one launch.
    auto same = std::ranges::find_if(
        launches_, [&](const Launch& l) { return l.group == group && l.name == name; });
    if (same == launches_.end()) {
      same = launches_.emplace(launches_.end());
      same->group = group;
      same->name = name;
      same->grain = text.grain;
    }
    Launch& l = *same;
    l.has_last = !text.last.empty();
    l.table.push_back({arguments_.size(), text.extent});
    l.extent += text.extent;
    using program::CpuArgument;
    for (const auto [kind, which] : text.arguments) {
      Patch p{.argument = arguments_.size()};
      const auto k = static_cast<size_t>(which);
      if (kind == CpuArgument::Scratch) {
        p.scratch = group;
        p.bytes = std::exchange(scratch_[group], scratch_[group] + text.scratch);
      } else if (kind == CpuArgument::Length) {
        arguments_.push_back(reinterpret_cast<char*>(made.program.row));
        continue;
      } else if (kind == CpuArgument::Across) {
        arguments_.push_back(reinterpret_cast<char*>(&load_transposed_block));
        continue;
      } else if (kind == CpuArgument::Number) {
        p.control = static_cast<uint32_t>(made.program.numbers[k].bits);
      } else {
        p = patch(p.argument, made.values[k]);
      }
      patches_.push_back(p);
      arguments_.push_back(nullptr);
    }
  }

  void build_kernels() {
    build_source("using namespace brrr::vx;\n", backend(DeviceType::CPU));
    for (Launch& l : launches_) {
      if (!l.calls.empty()) continue;
      l.fn = reinterpret_cast<KernelFn>(symbol(l.name));
      if (l.has_last) l.last = reinterpret_cast<KernelFn>(symbol(l.name + "_last"));
    }
  }

  void find_part_patches() {
    const Strips& strips = schedule_.strips;
    part_patches_.resize(strips.all.size());
    for (const Patch& p : patches_) {
      const uint32_t st = p.value == kNone ? kNone : r_.values[p.value].storage;
      if (st != kNone && strips.parts(st) > 1) part_patches_[strips.home[st]].push_back(p);
    }
  }

  // Only value checks can fail. A check runs as soon as its values exist, before the replay if they
  // come from outside the step: the earlier it can fail, the less has to be undone. A step must be
  // atomic: externals that are written before the last check keep an undo copy.
  void find_failures() {
    for (uint32_t at = 0; at < r_.instrs.size(); ++at) {
      const Instr& i = r_.instrs[at];
      const uint32_t group = schedule_.group_of[at];
      if (group == kNone || !i.op->check_values) continue;
      checks_.push_back({make_call(r_, i, bound_), ready(i, group)});
    }
    std::ranges::stable_sort(checks_, {}, &Check::after);
    if (!checks_.empty() && checks_.back().after >= 0) {
      const Strip* const strip = schedule_.strips.of(static_cast<uint32_t>(checks_.back().after));
      last_fallible_ = strip ? strip->last : checks_.back().after;  // A check follows whole strips.
    }
    for (uint32_t k = 0; k < r_.externals.size(); ++k) {
      for (const Access& a : r_.accesses[r_.externals[k]]) {
        if (a.write && schedule_.group_of[a.instr] <= last_fallible_) undo_externals_.push_back(k);
      }
    }
  }

  // Large gradients form one contiguous room, large results another, so that one temporary may live
  // where several of them will be written; each other survivor that is not tiny is its own room.
  void make_rooms(MemoryRules& rules) {
    constexpr size_t least = 4096;
    for (size_t k = 0; k < r_.survivors.size(); ++k) {
      const uint32_t st = r_.survivors[k];
      const size_t bytes = r_.storages[st].bytes;
      if (!safe_to_overwrite_[k] || bytes < least) continue;
      Row& row = rows_[r_.gradients[k]];
      const size_t block = row.broken ? 0 : host::block_bytes(bytes);
      if (block) {
        row.members.push_back(k);
        row.bytes.push_back(bytes);
        row.room.owners.emplace_back(st, row.room.bytes);
        row.room.bytes += block;
      } else {
        // The allocator rounds up to whole cache lines.
        rules.rooms.push_back({(bytes + 63) / 64 * 64, {{st, 0}}});
      }
    }
    for (const Row& row : rows_) {  // Temporaries try the largest rooms first.
      if (row.room.bytes) rules.rooms.insert(rules.rooms.begin(), row.room);
    }
  }

  // Places temporaries in survivors that are written later, but only temporaries after the last
  // point of failure: a survivor may have the memory of an old gradient, which must stay unchanged
  // while the step can fail.
  void plan_with_rooms() {
    MemoryRules rules{
        .rooms = {}, .from = static_cast<uint32_t>(last_fallible_ + 1), .scratch = scratch_};
    make_rooms(rules);
    plan_temporaries(rules);
  }

  void bind(const Replay& now, char* arena) {
    for (size_t k = 0; k < now.bindings.size(); ++k) {
      const Binding& b = now.bindings[k];
      char* const begin = static_cast<char*>(b.storage->data);
      bound_[r_.externals[k]]->data = begin + b.base * external_item_[k];
    }
    for (size_t k = 0; k < r_.survivors.size(); ++k)
      bound_[r_.survivors[k]]->data = now.survivors[k]->data;
    arena_ = arena;
    bind_temporaries();
    for (const Patch& p : patches_) arguments_[p.argument] = place_of(p, now.control);
  }

  void run_call(LibraryCall& c, uint32_t group, const int64_t* control) const {
    for (const auto& [word, from] : c.dynamic) c.call.attrs.v[word] = control[from];
    if (const auto& kept = memory_.kept[group]; kept.bytes) c.call.kept = address(kept);
    const MemoryPlan::Piece& scratch = memory_.scratch[group];
    char* const from = scratch.bytes ? address(scratch) : nullptr;
    const Held room(context.scratch, {c.call.op, from, from + scratch.bytes});
    c.call.op->on(DeviceType::CPU).run(c.call);
  }

  void launch(Launch& l, const int64_t* control, int64_t part, int64_t parts) {
    if (!l.calls.empty()) return run_call(*l.calls[static_cast<size_t>(part)], l.group, control);
    const int64_t first = l.extent / parts * part, extent = l.extent / parts;
    parallel_for(extent, l.grain,
                 [&](int64_t begin, int64_t end) { run_table(l, first + begin, first + end); });
    for (size_t k = 0; l.last && part + 1 == parts && k < l.table.size(); ++k) {
      l.last(arguments_.data() + l.table[k].first_argument, 0, 0);
    }
  }

  // Runs [begin, end) of the concatenated extents of the table's entries.
  void run_table(const Launch& l, int64_t begin, int64_t end) const {
    int64_t from = 0;
    for (const Operands& o : l.table) {
      const int64_t low = std::max(begin - from, int64_t{0}), high = std::min(end - from, o.extent);
      if (low < high) l.fn(arguments_.data() + o.first_argument, low, high);
      from += o.extent;
    }
  }

  // The group after which the values that a check reads exist; -1: before the replay.
  int64_t ready(const Instr& i, uint32_t group) const {
    int64_t ready = -1;
    for (uint32_t id : checked_values(r_, i)) {
      for (const Access& a : r_.accesses[r_.value(id).storage]) {
        const uint32_t g = schedule_.group_of[a.instr];
        if (a.write && g < group) ready = std::max<int64_t>(ready, g);
      }
    }
    return ready;
  }

  void launch_all(const int64_t* control, size_t first_check) {
    size_t next = first_check;
    if (context.observer) [[unlikely]]
      notes();  // Made now, so that no kernel is charged for the time.
    for (size_t k = 0, end; k < launches_.size(); k = end) {
      const uint32_t group = launches_[k].group;
      for (; next < checks_.size() && checks_[next].after < group; ++next) check(checks_[next]);
      const Strip* const strip = schedule_.strips.of(group);
      const uint32_t last = strip ? strip->last : group;
      for (end = k + 1; end < launches_.size() && launches_[end].group <= last;) ++end;
      const int64_t parts = strip ? strip->parts : 1;
      for (int64_t part = 0; part < parts; ++part) {
        if (strip) move_to_part(static_cast<size_t>(strip - schedule_.strips.all.data()), part);
        launch_part(k, end, control, part, parts);
      }
    }
  }

  // Kernels index rows from the start of the whole space: the address of a storage with memory for
  // one part is shifted back by the parts before.
  void move_to_part(size_t strip, int64_t part) {
    for (const Patch& p : part_patches_[strip]) {
      const auto bytes = static_cast<int64_t>(r_.storages[r_.values[p.value].storage].bytes);
      const int64_t before = bytes / schedule_.strips.all[strip].parts * part;
      arguments_[p.argument] = place_of(p, nullptr) - before;
    }
  }

  void launch_part(size_t from, size_t to, const int64_t* control, int64_t part, int64_t parts) {
    for (size_t k = from; k < to;) {
      const uint32_t group = launches_[k].group;
      run_observed(kCPU, [&] {
        for (; k < to && launches_[k].group == group; ++k)
          launch(launches_[k], control, part, parts);
      });
      if (!context.observer) [[likely]]
        continue;
      KernelNote note = notes()[group];
      note.work.flops /= static_cast<double>(parts);
      note.work.bytes /= static_cast<double>(parts);
      context.observer->ran(note, kCPU);
    }
  }

  // Gives an old gradient's memory to the new one, if only its leaf holds it and nothing can fail
  // any more when it is written.
  void reuse_gradients(const Replay& now) {
    reused_.clear();
    for (const auto& [old, k, leaf] : now.replaced) {
      Storage &from = *old->storage, &to = *now.survivors[k];
      if (from.refs.get() == 1 && safe_to_overwrite_[k] && from.owned && from.data && !to.data &&
          from.bytes == to.bytes) {
        to.data = std::exchange(from.data, nullptr);
        reused_.emplace_back(&from, &to);
      }
    }
  }

  // A gradient that is held elsewhere or was replaced breaks the row into separate rooms for good.
  void check_rows(Storage* const* survivors) {
    bool whole = true;
    for (Row& row : rows_) {
      if (row.members.empty()) continue;
      const auto* begin = static_cast<const char*>(survivors[row.members[0]]->data);
      for (size_t n = 0; n < row.members.size(); ++n) {
        const auto* at = static_cast<const char*>(survivors[row.members[n]]->data);
        row.broken |= at != (begin ? begin + row.begin(n) : nullptr);
      }
      whole &= !row.broken;
    }
    if (whole) return;
    for (Row& row : rows_) row = {.broken = row.broken};
    plan_with_rooms();
  }

  void allocate_survivors(Storage* const* survivors) const {
    for (const Row& row : rows_) {
      if (row.members.empty() || survivors[row.members[0]]->data) continue;
      auto* begin = static_cast<char*>(host::allocate_row(row.bytes.data(), row.members.size()));
      if (!begin) out_of_memory(*survivors[row.members[0]]);
      for (size_t n = 0; n < row.members.size(); ++n)
        survivors[row.members[n]]->data = begin + row.begin(n);
    }
    for (size_t k = 0; k < r_.survivors.size(); ++k) {
      if (!survivors[k]->data) allocate(*survivors[k]);
    }
  }

  static void check(const Check& c) { c.call->call.op->check_values(c.call->call); }

  std::vector<Launch> launches_;
  std::vector<int64_t> scratch_;          // By group: bytes of scratch memory.
  std::vector<Check> checks_;             // In the order in which they run.
  std::vector<uint32_t> undo_externals_;  // External numbers: written before a possible failure.
  std::vector<char*> arguments_;          // Of all generated kernels, concatenated.
  std::vector<Patch> patches_;
  std::vector<std::vector<Patch>> part_patches_;  // By strip: those that change from part to part.
  struct Row {
    std::vector<size_t> members = {}, bytes = {};  // Survivor numbers, and the bytes of each.
    Room room = {};
    bool broken = false;
    size_t begin(size_t member) const { return room.owners[member].second; }
  };
  Row rows_[2];  // Contiguous large results; contiguous large gradients.
  /// Old and new gradients that share memory in this replay, so that it needs no more memory than
  /// eager mode, which frees the old ones first.
  std::vector<std::pair<Storage*, Storage*>> reused_;
  std::vector<bool> safe_to_overwrite_;  // By survivor.
  int64_t last_fallible_ = -1;           // The last group after which a check runs; -1: none.
};

}  // namespace

std::unique_ptr<Plan> make_host_plan(const Recording& r, const StepOptions& options) {
  return std::make_unique<HostPlan>(r, options);
}

}  // namespace brrr::graph
