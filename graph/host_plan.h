#pragma once
// Replays on the CPU: a walk over kernels, whose operands' addresses are patched where they moved.

#include "graph/plan.h"

namespace brrr::graph {

class HostPlan final : public Plan {
 public:
  HostPlan(const Recording& r, const StepOptions& options, StepStats& stats);
  ~HostPlan() override;

  void run(const std::vector<Binding>& bindings, const int64_t* control,
           Storage* const* survivors) override;
  /// Known after the first run: nothing can fail any more once survivor k is written.
  Device device() const override { return kCPU; }
  bool may_reuse(const TensorImpl& old, size_t k) override;
  uint32_t holders(const Storage*) const override { return 0; }

 private:
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
  bool fallible_after_write();
  void bind(const std::vector<Binding>& bindings, const int64_t* control, Storage* const* survivors,
            char* arena);
  void launch(Launch& l, const int64_t* control);
  void launch_all(const int64_t* control);
  void find_early_checks();
  void sort_patches();
  void settle_memory();
  bool safe_to_overwrite(size_t k) const { return first_write_[k] > last_fallible_; }

  KernelModule* module_ = nullptr;
  std::vector<Launch> launches_;
  std::vector<uint32_t> written_;  // External numbers that the step writes.
  std::vector<char*> arguments_;   // Of all generated kernels, one after the other.
  std::vector<Patch> patches_;     // All; the two below are those that move on each call or rarely.
  std::vector<Patch> moving_, arena_patches_;
  std::vector<uint32_t> guests_;  // Temporaries in the memory of survivors.
  char* arena_ = nullptr;
  std::vector<int64_t> first_write_;   // By survivor: the launch that writes it first.
  int64_t last_fallible_ = INT64_MAX;  // The last launch that checks values or takes scratch.
  bool needs_undo_ = false;            // A kernel that can throw runs after an external write.
};

}  // namespace brrr::graph
