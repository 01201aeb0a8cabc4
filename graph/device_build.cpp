// Building a DevicePlan: its kernels, and what has one address for its life.
#include <algorithm>

#include "core/check.h"
#include "graph/device_plan.h"

namespace brrr::graph {

static constexpr size_t kBlockAlign = 64;

void DevicePlan::find_externals() {
  for (uint32_t st : r_.externals) {
    External& x = externals_.emplace_back();
    x.written = r_.written[st];
    if (r_.storages[st].device == kCPU) continue;
    const Extent touched = r_.extent(st);
    x.low = touched.low;
    x.high = touched.high;
  }
}

void DevicePlan::generate_kernels() {
  kernels_ -= std::exchange(generated_, 0);  // They are counted as launches, not as groups.
  for (const Group& g : schedule_.groups) {
    Launch& l = launches_.emplace_back();
    scratch_.push_back(0);
    if (g.fused) {
      for (const Part& part : g.parts) add_part(part, g.parts.size() > 1, l);
      for (const Batch& b : l.batches) generated_ += b.kernels.size();
      continue;
    }
    const Instr& i = r_.instrs[g.instrs[0]];
    if (is_host_data(i)) {
      l.host_data = static_cast<int>(host_data_.size());
      add_host_data(i);
      continue;
    }
    // Of no elements: nothing is to be done.
    if (i.op->pointwise && r_.value(r_.out(i)[0]).numel == 0) continue;
    BRRR_CHECK(!i.attrs.dynamic || i.op->kind == OpKind::Random,
               "{} has attributes that vary from step to step, which its kernel cannot read on the "
               "device",
               i.op->name);
    l.call = make_call(r_, i, bound_);
    l.site = device_.graphs->site(r_.paths[i.path]);
  }
  kernels_ += generated_;
  place_tables();
}

void DevicePlan::build_kernels() {
  build_source(std::string(program::CallTableText) + program::kRowText, device_);
  for (Launch& l : launches_) {
    for (Batch& b : l.batches) {
      for (Kernel& k : b.kernels) k.fn = symbol(k.name);
    }
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

// Of a group, what has one text is one batch.
DevicePlan::Batch& DevicePlan::batch_of(Launch& l, const std::string& name, bool table) {
  auto same =
      std::ranges::find_if(l.batches, [&](const Batch& b) { return b.kernels[0].name == name; });
  if (same == l.batches.end()) {
    same = l.batches.emplace(l.batches.end());
    same->table = table;
  }
  ++same->parts;
  return *same;
}

void DevicePlan::add_word(const GroupProgram& g, const Part& part, program::Word w, int64_t value,
                          Batch& b) {
  using program::Word;
  const auto k = static_cast<size_t>(w.which);
  if (w.kind == Word::Address) {
    b.addresses.emplace_back(b.words.size(), g.values[k]);
  } else if (w.kind == Word::Number && g.program.numbers[k].control) {
    b.controls.emplace_back(b.words.size(), static_cast<uint32_t>(value));
  } else if (w.kind == Word::Scratch) {
    b.scratch.emplace_back(b.words.size(), value);
  } else if (w.kind == Word::Fault) {
    value = reinterpret_cast<int64_t>(device_fault());
  } else if (w.kind == Word::Op) {
    value = fault_op_of(part);
  }
  b.words.push_back(value);
}

// Of one more part.
void DevicePlan::Batch::add_blocks(size_t kernel, std::string name, int64_t blocks, int threads) {
  if (kernels.size() == kernel) kernels.push_back({std::move(name), threads});
  kernels[kernel].first.push_back(kernels[kernel].blocks);
  kernels[kernel].blocks += blocks;
}

template <class Walk>
void DevicePlan::add_kernels(const GroupProgram& g, const Part& part, const Walk& walk, bool table,
                             Launch& l) {
  using namespace program;
  const Program& p = g.program;
  const std::string name = named([&](const std::string& as) {
    std::string all = cuda_argument(p, walk, as);
    each_launch(walk, p.space,
                [&](Stage s, int64_t, int) { all += cuda_text(p, walk, as, s, table); });
    return all;
  });
  Batch& b = batch_of(l, name, table);
  size_t at = 0;
  each_launch(walk, p.space, [&](Stage s, int64_t blocks, int threads) {
    b.add_blocks(at++, name + suffix(s), blocks, threads);
  });
  const int64_t before = std::exchange(scratch_.back(), scratch_.back() + walk.scratch_bytes());
  each_word(walk, p.space, p.windows, p.numbers, [&](Word w, int64_t value) {
    add_word(g, part, w, w.kind == Word::Scratch ? before + value : value, b);
  });
}

void DevicePlan::add_part(const Part& part, bool table, Launch& l) {
  GroupProgram g = program_of(r_, part, schedule_);
  program::Program& p = g.program;
  if (p.row) {
    const bool whole = p.row == p.space.numel();
    return add_kernels(g, part, plan_rows(p.space, p.windows, row_traits(p, whole)), table, l);
  }
  program::Walk walk = plan_walk(p.space, p.windows);
  walk.notes = fault_op_of(part) >= 0;
  add_kernels(g, part, walk, table, l);
}

// Behind the control words and host data: a batch's words, then of each kernel the first blocks.
void DevicePlan::place_tables() {
  for (Launch& l : launches_) {
    for (Batch& b : l.batches) {
      if (!b.table) continue;
      b.at = block_bytes_ = (block_bytes_ + kBlockAlign - 1) / kBlockAlign * kBlockAlign;
      block_bytes_ += b.words.size() * sizeof(int64_t);
      block_bytes_ += b.kernels.size() * static_cast<size_t>(b.parts) * sizeof(int64_t);
    }
  }
}

// What a note of an id that is out of range says of where it was met; -1: none is met.
int64_t DevicePlan::fault_op_of(const Part& part) const {
  const auto at = std::ranges::find_if(
      part.instrs, [&](uint32_t at) { return r_.instrs[at].op->check_values != nullptr; });
  if (at == part.instrs.end()) return -1;
  const Instr& i = r_.instrs[*at];
  return fault_op(*i.op, device_.graphs->site(r_.paths[i.path]));
}

// What has one address for the plan's life.
void DevicePlan::allocate_fixed() {
  for (uint32_t st : r_.survivors) slots_.push_back(device_memory(r_.storages[st].bytes));
  block_memory_ = device_memory(block_bytes_);
  block_ = static_cast<char*>(block_memory_->data);
  arena_ = device_.graphs->arena(memory_.arena_bytes);
  BRRR_CHECK(arena_ || !memory_.arena_bytes, "no device memory left for an arena of {} bytes",
             memory_.arena_bytes);
}

}  // namespace brrr::graph
