#pragma once
// The kernels of a GPU plan, their launches on two branches, and the block of device memory from
// which they read varying scalars, host data and operand tables.

#include <algorithm>
#include <cstdlib>

#include "core/check.h"
#include "core/context.h"
#include "core/device_kernel.h"
#include "core/device_link.h"
#include "graph/branches.h"
#include "graph/plan.h"
#include "ops/program/cuda_rows.h"

namespace brrr::graph {

class DeviceKernels : public Plan {
 protected:
  DeviceKernels(const Recording& r, const StepOptions& options, const Target& target)
      : Plan(r, options, target), block_bytes_(r.control.size() * sizeof(int64_t)) {}

  /// A generated kernel; of several parts, part k has the blocks from first[k] on.
  struct Kernel {
    std::string name;
    int threads;
    int64_t blocks = 0;
    std::vector<int64_t> first = {};
    void* fn = nullptr;
  };
  /// Parts of a group with the same kernel text, and their kernels' arguments, part by part: words.
  /// In a table, each kernel's first blocks follow the words.
  struct Batch {
    std::vector<Kernel> kernels;
    std::vector<int64_t> words;
    int64_t parts = 0;
    size_t at = 0, first = 0;    ///< Offsets in the block of a table and its first blocks.
    std::vector<Patch> patches;  ///< Words that are set by resolve().
  };
  /// What runs for a group: batches of generated kernels, or a library call that queues its own.
  struct Launch {
    std::unique_ptr<LibraryCall> call;
    std::vector<Batch> batches;
    bool table = false;  ///< Kernels read the words in the block; else they are arguments.
    int host_data = -1;  ///< Index into host_data_, if the group is host data; no kernel then.
    uint32_t site = 0;   ///< The call site for fault records.
  };
  /// Host memory that the step reads.
  struct HostData {
    uint32_t control;  ///< The control word with the address.
    uint32_t storage;
    HostPart part;  ///< Its place in the block.
  };
  // To be called before anything depends on the order of the groups, which it may change.
  void choose_branches(const MemoryRules& rules) {
    // Exchanges between processes need one order in all of them, and use the side queue themselves.
    const bool exchanges =
        std::ranges::any_of(r_.instrs, [](const Instr& i) { return i.op->communicates; });
    if (exchanges || std::getenv("BRRR_ONE_BRANCH")) return;
    const auto start = Clock::now();
    const auto arena = [&] { return plan_memory(r_, schedule_, rules).arena_bytes; };
    const std::vector<uint32_t> order = order_for_branches(r_, schedule_, notes());
    if (!std::ranges::is_sorted(order)) {
      const size_t least = arena();
      reorder(order);
      if (arena() > least) {
        std::vector<uint32_t> back(order.size());
        for (uint32_t k = 0; k < back.size(); ++k) back[order[k]] = k;
        reorder(back);
      }
    }
    branches_ = find_branches(r_, schedule_, notes());
    counts_.plan_seconds += seconds_since(start);
  }

  // Side-branch groups keep their memory for as long as they may run, unless the arena would grow:
  // then the next group that writes there waits for them.
  void place_temporaries(MemoryRules& rules) {
    plan_temporaries(rules);
    if (!branches_.count) return;
    const size_t least = memory_.arena_bytes, bound = memory_.lower_bound_bytes;
    rules.until = branches_.until;
    for (int attempt = 0; attempt < 3; ++attempt) {
      plan_temporaries(rules);
      if (memory_.arena_bytes <= least) break;
      for (uint32_t g = 0; g <= memory_.peak; ++g) {
        if (rules.until[g] >= memory_.peak) rules.until[g] = g;
      }
    }
    if (memory_.arena_bytes > least) {
      rules.until.clear();
      plan_temporaries(rules);
    }
    // A bound for live bytes, not for bytes kept longer; results may hold more temporaries now.
    memory_.lower_bound_bytes = std::min(bound, memory_.arena_bytes);
  }

  void generate_kernels() {
    for (const Group& g : schedule_.groups) {
      Launch& l = launches_.emplace_back();
      scratch_.push_back(0);
      if (g.fused) {
        l.table = g.parts.size() > 1;
        for (const Part& part : g.parts) add_part(part, l);
        for (const Batch& b : l.batches) generated_ += b.kernels.size();
        continue;
      }
      const Instr& i = r_.instrs[g.instrs[0]];
      const Value& v = r_.value(r_.out(i)[0]);
      if (is_host_data(i)) {  // Used where the upload puts it.
        const auto bytes = static_cast<size_t>(v.numel * v.item());
        l.host_data = static_cast<int>(host_data_.size());
        host_data_.push_back({i.control, v.storage, {nullptr, reserve_in_block(bytes), bytes}});
        continue;
      }
      // No elements: nothing to do.
      if (i.op->pointwise && v.numel == 0) continue;
      BRRR_CHECK(
          !i.attrs.dynamic || i.op->kind == OpKind::Random,
          "{} has attributes that vary from step to step, which its kernel cannot read on the "
          "device",
          i.op->name);
      l.call = make_call(r_, i, bound_);
      l.site = device_queue::site(r_.paths[i.path]);
    }
    kernels_ += generated_;
    place_tables();
  }

  void build_kernels() {
    build_source(std::string(program::CallTableText) + program::kRowText, device_);
    for (Launch& l : launches_) {
      for (Batch& b : l.batches) {
        for (Kernel& k : b.kernels) k.fn = symbol(k.name);
      }
    }
  }

  // Reserves bytes of the block; returns their offset, a multiple of 64.
  size_t reserve_in_block(size_t bytes) {
    const size_t at = (block_bytes_ + 63) / 64 * 64;
    block_bytes_ = at + bytes;
    return at;
  }

  // Parts of a group with the same text share a batch.
  Batch& batch_of(Launch& l, const std::string& name) {
    auto same =
        std::ranges::find_if(l.batches, [&](const Batch& b) { return b.kernels[0].name == name; });
    if (same == l.batches.end()) same = l.batches.emplace(same);
    ++same->parts;
    return *same;
  }

  void add_word(const GroupProgram& g, const Part& part, program::Word w, int64_t value, Batch& b) {
    using program::Word;
    const auto k = static_cast<size_t>(w.which);
    const size_t at = b.words.size();
    if (w.kind == Word::Address) {
      b.patches.push_back(patch(at, g.values[k]));
    } else if (w.kind == Word::Number && g.program.numbers[k].control) {
      b.patches.push_back({.argument = at, .control = static_cast<uint32_t>(value)});
    } else if (w.kind == Word::Scratch) {
      const auto group = static_cast<uint32_t>(scratch_.size()) - 1;
      b.patches.push_back({.argument = at, .scratch = group, .bytes = value});
    } else if (w.kind == Word::Fault) {
      value = reinterpret_cast<int64_t>(device_fault());
    } else if (w.kind == Word::Op) {
      value = fault_op_in(part);
    }
    b.words.push_back(value);
  }

  template <class Walk>
  void add_kernels(const GroupProgram& g, const Part& part, const Walk& walk, Launch& l) {
    using namespace program;
    const Program& p = g.program;
    const std::string name = named(part, [&](const std::string& as) {
      std::string all = cuda_argument(p, walk, as);
      each_launch(walk, p.space,
                  [&](Stage s, int64_t, int) { all += cuda_text(p, walk, as, s, l.table); });
      return all;
    });
    Batch& b = batch_of(l, name);
    size_t at = 0;
    each_launch(walk, p.space, [&](Stage s, int64_t blocks, int threads) {
      if (b.kernels.size() == at) b.kernels.push_back({name + suffix(s), threads});
      Kernel& k = b.kernels[at++];
      k.first.push_back(k.blocks);
      k.blocks += blocks;
    });
    const int64_t before = std::exchange(scratch_.back(), scratch_.back() + walk.scratch_bytes());
    each_word(walk, p.space, p.windows, p.numbers, [&](Word w, int64_t value) {
      add_word(g, part, w, w.kind == Word::Scratch ? before + value : value, b);
    });
  }

  void add_part(const Part& part, Launch& l) {
    GroupProgram g = program_of(r_, part, schedule_);
    program::Program& p = g.program;
    if (p.row) {
      const bool whole = p.row == p.space.numel();
      return add_kernels(g, part, plan_rows(p.space, p.windows, row_traits(p, whole)), l);
    }
    program::Walk walk = plan_walk(p.space, p.windows);
    walk.notes = fault_op_in(part) >= 0;
    add_kernels(g, part, walk, l);
  }

  // Places the tables after control words and host data.
  void place_tables() {
    for (Launch& l : launches_) {
      if (!l.table) continue;
      for (Batch& b : l.batches) {
        const size_t before = b.words.size() * sizeof(int64_t);
        for (const Kernel& k : b.kernels) {
          b.words.insert(b.words.end(), k.first.begin(), k.first.end());
        }
        b.at = reserve_in_block(b.words.size() * sizeof(int64_t));
        b.first = b.at + before;
      }
    }
  }

  // The op and call site that fault records of out-of-range ids name; -1: the part checks no ids.
  int64_t fault_op_in(const Part& part) const {
    for (uint32_t at : part.instrs) {
      const Instr& i = r_.instrs[at];
      if (i.op->check_values) return fault_op(*i.op, device_queue::site(r_.paths[i.path]));
    }
    return -1;
  }

  // --- launches ----------------------------------------------------------------------------------

  void run_kernels(const Batch& b, bool from_table) {
    const auto* first = reinterpret_cast<const long*>(block_ + b.first);
    for (const Kernel& k : b.kernels) {
      const program::CallTable table{block_ + b.at, first, b.parts};
      first += b.parts;
      const void* const arguments = from_table ? static_cast<const void*>(&table) : b.words.data();
      device_queue::launch(k.fn, k.name.c_str(), {k.blocks}, k.threads, arguments,
                           from_table ? sizeof table : b.words.size() * sizeof(int64_t));
    }
  }

  void launch(Launch& l) {
    if (l.host_data >= 0) {
      const HostData& d = host_data_[static_cast<size_t>(l.host_data)];
      char* const to = static_cast<char*>(bound_[d.storage]->data);
      const bool result = to != block_ + d.part.at;  // A result's readers use its slot.
      if (result && d.part.bytes) device_.copy(to, block_ + d.part.at, d.part.bytes);
    }
    for (const Batch& b : l.batches) run_kernels(b, l.table);
    if (!l.call) return;
    // Fault records of the kernels queued here name their call site.
    const Held site(context.site, l.site);
    device_.launch(l.call->call);
  }

  void launch_group(size_t k) {
    try {
      run_observed(kCUDA, [&] { launch(launches_[k]); });
    } catch (const Error& e) {
      const Group& g = schedule_.groups[k];
      const size_t others = g.instrs.size() - 1;
      fail("{}{}: {}", r_.describe(r_.instrs[g.instrs[0]]),
           others ? fmt::format(" and {} more ops", others) : "", e.what());
    }
  }

  void launch_all() {
    const Held products(context.tf32, r_.tf32);
    if (context.observer) notes();  // Now, so that no kernel is charged for it.
    for (size_t k = 0; k < launches_.size(); ++k) {
      launch_group(k);
      if (context.observer) context.observer->ran(notes()[k], kCUDA);
    }
  }

  // The same on two branches, to be captured; `points`: one for each side-branch group.
  void launch_branches(const std::vector<device_link::Point>& points,
                       const std::vector<std::vector<Use>>& uses) {
    if (points.empty()) return launch_all();
    const Held products(context.tf32, r_.tf32);
    const std::vector<uint32_t> awaits = find_awaits(r_, branches_, uses);
    std::vector<const device_link::Point*> over(launches_.size());
    size_t next = 0;
    for (uint32_t k = 0; k < launches_.size(); ++k) {
      if (branches_.beside[k]) {
        over[k] = &points[next++];
        device_link::beside(*over[k], [&] { launch_group(k); });
        continue;
      }
      if (awaits[k] != kNone) device_link::await(over[awaits[k]]->get());
      launch_group(k);
    }
    device_link::await(points.back().get());
  }

  const Backend& device_ = backend(DeviceType::CUDA);
  std::vector<Launch> launches_;  // By group.
  std::vector<int64_t> scratch_;  // By group: bytes of scratch memory.
  std::vector<HostData> host_data_;
  size_t block_bytes_;
  char* block_ = nullptr;  ///< On the device: control words, host data, tables.
  Branches branches_;      ///< Of the captured step.
};

}  // namespace brrr::graph
