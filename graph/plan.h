#pragma once
// A compiled entry: a schedule of kernels over planned memory, replayed without running user code.
// What plans of all devices share; host_plan.cpp and device_plan.cpp replay.

#include <functional>
#include <map>
#include <memory>

#include "core/backend.h"
#include "core/figures.h"
#include "graph/pass.h"
#include "graph/rematerialise.h"
#include "graph/schedule.h"
#include "graph/step.h"

namespace brrr::graph {

/// What a plan and its replays have cost and done besides the kernels, for stats and explain().
struct ReplayCounts {
  double fuse_seconds = 0, plan_seconds = 0;
  double build_seconds = 0;
  bool build_cached = false;
  uint64_t launches = 0;    ///< Graph launches of the last replay.
  uint64_t captures = 0;    ///< How often the step was captured.
  uint64_t direct = 0;      ///< Replays that queued kernel by kernel, because a capture failed.
  uint64_t moved_away = 0;  ///< Results that a user still held when the next replay came.
  uint64_t copied_in = 0;   ///< Inputs whose address was not the captured one.
  size_t nodes = 0, graph_bytes = 0;
  size_t beside = 0;        ///< Groups that the graph has on a branch beside the others.
  size_t upload_bytes = 0;  ///< Of the copy from the host before each replay; 0: there is none.
  double capture_seconds = 0;
  std::string failure;  ///< Why the last capture failed.
};

/// A call, to a plan.
struct Replay {
  const std::vector<Binding>& bindings;
  const int64_t* control;
  Storage* const* survivors;  ///< In the recording's order; they get memory if they have none.
  const std::vector<Replaced>& replaced;
};

/// Where an argument of a generated kernel comes from when it is not fixed.
struct Patch {
  size_t argument;
  uint32_t value = kNone;    ///< A window on a storage, or
  uint32_t control = kNone;  ///< a control word, or
  uint32_t scratch = kNone;  ///< the group's scratch memory.
  int64_t bytes = 0;         ///< Offset within that.
};

class Plan : NotCopied {
 public:
  /// Simplifies, fuses, plans and builds `r`, which must outlive the plan. Throws brrr::Error when
  /// the kernels cannot be built. On a GPU memory of gradients that the first replay is going to
  /// replace becomes the new ones'.
  static std::unique_ptr<Plan> make(const Recording& r, const StepOptions& options,
                                    const std::vector<Replaced>& replaced = {});
  /// The same op by op: nothing is fused or built. Null if a part of the step is on a GPU, which
  /// has the walker for that.
  static std::unique_ptr<Plan> make_unfused(const Recording& r, const StepOptions& options);
  virtual ~Plan();

  /// Runs the step. On throw (memory, an index out of range) externals, and gradients that would
  /// have been replaced, are as before.
  virtual void run(const Replay& now) = 0;

  /// Where replays run.
  virtual Device device() const = 0;
  /// After a step's effects are there: throws what the device refused once they were queued, and
  /// where BRRR_SYNC_AFTER_REPLAY asks for it waits for what it found wrong. The step has happened.
  virtual void report_faults() const {}
  /// By survivor: nothing can fail any more once it is written, so that an old gradient's memory
  /// may be its. Null where a replay has its own ways.
  virtual const std::vector<bool>* safe_to_overwrite() const { return nullptr; }
  /// Whether the group is on a branch of a captured graph beside the others.
  virtual bool is_beside(uint32_t) const { return false; }
  /// References to a survivor that the plan keeps for itself.
  virtual bool holds(size_t, const Storage*) const { return false; }

  /// Launches of a replay, and those of them that are generated.
  size_t kernels() const { return kernels_; }
  size_t generated_kernels() const { return generated_; }
  /// What it replays: the recording it was made of, or that one rematerialised.
  const Recording& recording() const { return r_; }
  const Rematerialised& rematerialised() const { return anew_; }
  const Schedule& schedule() const { return schedule_; }
  const Target& target() const { return target_; }
  const MemoryPlan& memory() const { return memory_; }
  const KernelSource& source() const { return source_; }
  /// The group for which the source's k-th kernel was written first.
  const Group& first_user(size_t k) const {
    return schedule_.groups[schedule_.group_of[first_users_[k]]];
  }
  const ReplayCounts& counts() const { return counts_; }
  /// What each group's kernels are and do, for observers.
  const std::vector<KernelNote>& notes();

 protected:
  Plan(const Recording& r, const StepOptions& options, const Target& target);
  /// Puts the groups in another order that every dependence allows; before anything is made of
  /// them.
  void reorder(const std::vector<uint32_t>& order);
  void plan_temporaries(const MemoryRules& rules);
  /// The name of a part's kernels, whose text depends on it; that is added to the source unless it
  /// is there.
  std::string named(const Part& part, const std::function<std::string(const std::string&)>& text);
  /// Builds the kernels, if there are any, behind `first`.
  void build_source(const std::string& first, const Backend& by);
  void* symbol(const std::string& name) const { return built_by_->symbol(module_, name.c_str()); }
  /// In the arena, or in a room whose owners are bound.
  char* address(const MemoryPlan::Piece& x) const {
    if (x.host == kNone) return arena_ + x.offset;
    return static_cast<char*>(bound_[memory_.rooms[x.host].owners[0].first]->data) + x.offset;
  }
  Patch patch(size_t argument, uint32_t value) const {
    const Value& v = r_.value(value);
    return {.argument = argument, .value = value, .bytes = v.offset * v.item()};
  }
  /// What the argument is, where control words lie at `control`.
  char* place_of(const Patch& p, const void* control) const {
    if (p.value != kNone) {
      return static_cast<char*>(bound_[r_.values[p.value].storage]->data) + p.bytes;
    }
    if (p.scratch != kNone) return address(memory_.scratch[p.scratch]) + p.bytes;
    return const_cast<char*>(static_cast<const char*>(control)) + p.control * sizeof(int64_t);
  }
  void bind_temporaries() {
    for (uint32_t st : temporaries_) bound_[st]->data = address(memory_.storages[st]);
  }

  const Clock::time_point begin_ = Clock::now();  // Of its making.
  const Target target_;
  ReplayCounts counts_;
  Rematerialised anew_;
  const Recording& r_;
  Schedule schedule_;
  MemoryPlan memory_;
  char* arena_ = nullptr;
  KernelSource source_;
  Storages bound_;                      // Null where nothing is stored.
  std::vector<int64_t> external_item_;  // By external number: bytes of an element.
  size_t kernels_ = 0, generated_ = 0;  // The library's, until the others are counted, too.

 private:
  KernelNote note(const Group& g) const;
  const Backend* built_by_ = nullptr;
  KernelModule* module_ = nullptr;
  std::map<std::string, std::string> names_;  // Text -> name: equal kernels are one.
  std::vector<uint32_t> first_users_;         // Instructions, by the source's kernel.
  std::vector<KernelNote> notes_;
  std::vector<uint32_t> temporaries_;  // Storages in the arena and in rooms.
};

/// One of a step that computes on the CPU alone, and one on a GPU.
std::unique_ptr<Plan> make_host_plan(const Recording& r, const StepOptions& options);
std::unique_ptr<Plan> make_device_plan(const Recording& r, const StepOptions& options,
                                       const std::vector<Replaced>& replaced);

}  // namespace brrr::graph
