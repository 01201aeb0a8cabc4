#pragma once
// A compiled entry: a schedule of kernels over planned memory, replayed without running user code.

#include <memory>

#include "core/backend.h"
#include "graph/pass.h"
#include "graph/schedule.h"
#include "graph/step.h"

namespace brrr::graph {

class Plan {
 public:
  /// Simplifies, fuses, plans and builds `r`, which must outlive the plan. Throws brrr::Error when
  /// the kernels cannot be built. Times and sizes are added to `stats`.
  Plan(const Recording& r, const StepOptions& options, StepStats& stats);
  ~Plan();
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  /// Runs the step. `survivors` have no memory yet and get it here, in Recording::survivors' order.
  /// On throw (memory, an index out of range) externals are as before.
  void run(const std::vector<Binding>& bindings, const int64_t* control, Storage* const* survivors);

  /// Whether nothing can fail any more once survivor k is written. Known after the first run: then
  /// the memory of a gradient that the step replaces may be lent to the one that replaces it.
  bool safe_to_overwrite(size_t k) const { return first_write_[k] > last_fallible_; }

  size_t generated_kernels() const { return generated_; }
  const Schedule& schedule() const { return schedule_; }
  const MemoryPlan& memory() const { return memory_; }
  const BuildReport& build_report() const { return report_; }
  const std::string& source() const { return source_; }

 private:
  /// A library kernel with its operands bound to the plan's storages.
  struct Call {
    std::vector<TensorImpl*> in;
    std::vector<Tensor> keep;
    OpCall call;
    std::vector<std::pair<int, uint32_t>> dynamic;  ///< Attribute word, control word.
    Call(const OpDef& op, int n, int outputs)
        : in(static_cast<size_t>(n)), call(op, in.data(), n, outputs) {}
  };
  using KernelFn = void (*)(char* const* arguments, int64_t begin, int64_t end);
  struct Launch {
    std::unique_ptr<Call> call;  ///< Null: a generated kernel.
    KernelFn fn = nullptr;
    size_t first_argument = 0;
    int64_t extent = 0, grain = 1;
    bool checked_early = false;  ///< The call's value check runs before the replay starts.
  };
  /// Where an argument comes from when it is not fixed.
  struct Patch {
    size_t argument;
    KernelArgument from;
    int64_t bytes;  ///< Offset within the storage.
  };

  void generate_kernels(StepStats& stats);
  void prepare_call(const Instr& i, Launch& l);
  void make_bound_storages();
  bool fallible_after_write();
  void bind(const std::vector<Binding>& bindings, const int64_t* control, Storage* const* survivors,
            char* arena);
  void launch(Launch& l, const int64_t* control);
  void launch_all(const int64_t* control);
  void find_early_checks();
  void sort_patches();
  void settle_memory();

  const Recording& r_;
  Schedule schedule_;
  MemoryPlan memory_;
  std::string source_;
  BuildReport report_;
  KernelModule* module_ = nullptr;
  std::vector<Launch> launches_;
  std::vector<Ref<Storage>> bound_;    // By storage id; null where nothing is stored.
  std::vector<size_t> external_item_;  // By external number: bytes of an element.
  std::vector<uint32_t> written_;      // External numbers that the step writes.
  std::vector<char*> arguments_;       // Of all generated kernels, one after the other.
  std::vector<Patch> patches_;  // All; the two below are those that move on each call or rarely.
  std::vector<Patch> moving_, arena_patches_;
  std::vector<uint32_t> guests_;  // Temporaries in the memory of survivors.
  char* arena_ = nullptr;
  std::vector<int64_t> first_write_;   // By survivor: the launch that writes it first.
  int64_t last_fallible_ = INT64_MAX;  // The last launch that checks values or takes scratch.
  size_t generated_ = 0;
  bool needs_undo_ = false;  // A kernel that can throw runs after an external write.
};

/// Old gradients whose memory a replay writes the new ones into, so that it needs no more memory
/// than eager mode, which frees them first. Given back if the replay never began.
class Loans {
 public:
  /// Lends `old`'s memory to survivor `k`, if nobody else can see it and nothing can go wrong.
  void offer(const Plan& plan, const TensorImpl& old, size_t k, Storage& survivor);
  void take_back() noexcept;
  void clear() { lent_.clear(); }

 private:
  std::vector<std::pair<Storage*, Storage*>> lent_;  // From, to; both outlive the replay.
};

}  // namespace brrr::graph
