#pragma once
// Replays on the CPU: a walk over kernels, whose operands' addresses are patched where they moved.

#include "core/context.h"
#include "graph/plan.h"

namespace brrr::graph {

class HostPlan final : public Plan {
 public:
  HostPlan(const Recording& r, const StepOptions& options, StepStats& stats);

  void run(const Replay& now) override;
  Device device() const override { return kCPU; }
  const std::vector<bool>* safe_to_overwrite() const override { return &safe_to_overwrite_; }

 private:
  using KernelFn = void (*)(char* const* arguments, int64_t begin, int64_t end);
  /// What a kernel is run on: a part of its group.
  struct Operands {
    size_t first_argument;
    int64_t extent;
  };
  struct Launch {
    uint32_t group = 0;
    std::vector<std::unique_ptr<LibraryCall>> calls;  ///< By part; none: a generated kernel.
    std::string name;                                 ///< Of a generated one,
    KernelFn fn = nullptr, last = nullptr;
    bool has_last = false;
    std::vector<Operands> table;
    int64_t extent = 0, grain = 1;  ///< Of the whole table.
  };
  /// Of values that an instruction's kernel needs.
  struct Check {
    std::unique_ptr<LibraryCall> call;
    int64_t after;  ///< The group after which it runs; -1: before the replay starts.
  };
  /// Where an argument comes from when it is not fixed.
  struct Patch {
    size_t argument;
    uint32_t value = kNone;    ///< A window on a storage, or
    uint32_t control = kNone;  ///< a control word, or
    uint32_t scratch = kNone;  ///< the group's scratch memory.
    int64_t bytes = 0;         ///< Offset within that.
  };

  void add_launches();
  void add_kernel(uint32_t group, const Part& part);
  void build_kernels(StepStats& stats);
  void find_checks();
  int64_t ready(const Instr& i, uint32_t group) const;
  void find_failures();
  void make_rooms(MemoryRules& rules);
  void borrow(const Replay& now);
  void check_rows(Storage* const* survivors);
  void allocate_survivors(Storage* const* survivors) const;
  void plan_around(StepStats& stats);
  void find_part_patches();
  void bind(const Replay& now, char* arena);
  Scratch scratch(uint32_t group, const OpDef* op) const;
  void launch(Launch& l, const int64_t* control, int64_t part, int64_t parts);
  void run_call(LibraryCall& c, uint32_t group, const int64_t* control) const;
  void run_table(const Launch& l, int64_t begin, int64_t end) const;
  static void check(const Check& c) { c.call->call.op->check_values(c.call->call); }
  void launch_all(const int64_t* control, size_t first_check);
  /// Launches [from, to), of which some may be of one group, in one part of a strip.
  void launch_part(size_t from, size_t to, const int64_t* control, int64_t part, int64_t parts);
  void move_to_part(size_t strip, int64_t part);
  uint32_t last_of(uint32_t group) const {
    const Strip* const strip = schedule_.strips.of(group);
    return strip ? strip->last : group;
  }

  std::vector<Launch> launches_;
  std::vector<int64_t> scratch_;  // By group: bytes that its generated kernels take.
  std::vector<Check> checks_;     // In their order.
  std::vector<uint32_t> undone_;  // External numbers that a failure may come after a write of.
  std::vector<char*> arguments_;  // Of all generated kernels, one after the other.
  std::vector<Patch> patches_;
  std::vector<std::vector<Patch>> part_patches_;  // By strip: those that move from part to part.
  struct Row {
    std::vector<size_t> members, bytes, begins;  // By their number; of each.
    bool broken = false;
  };
  Row rows_[2];  // Large results that lie side by side; and gradients.
  /// Old gradients whose memory this replay writes the new ones into, so that it needs no more than
  /// eager mode, which frees them first.
  std::vector<std::pair<Storage*, Storage*>> lent_;
  std::vector<bool> safe_to_overwrite_;  // By survivor.
  int64_t last_fallible_ = -1;           // After it nothing can fail any more.
};

}  // namespace brrr::graph
