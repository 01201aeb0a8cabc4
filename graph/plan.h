#pragma once
// A plan: a compiled recording, that is a schedule of kernels over planned memory, replayed without
// running user code. Common to all devices; host_plan.cpp and device_plan.cpp replay.

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

/// Counts and costs of a plan and its replays apart from the kernels, for stats() and explain().
struct ReplayCounts {
  double fuse_seconds = 0, plan_seconds = 0;
  double build_seconds = 0;
  bool build_cached = false;
  uint64_t launches = 0;    ///< Graph launches of the last replay.
  uint64_t captures = 0;    ///< How often the step was captured.
  uint64_t direct = 0;      ///< Replays that queued kernel by kernel, because a capture failed.
  uint64_t copied_out = 0;  ///< Results copied away, because a user held them at the next replay.
  uint64_t copied_in = 0;   ///< Inputs copied, because their address was not the captured one.
  size_t nodes = 0, graph_bytes = 0;
  size_t beside = 0;        ///< Groups on the captured graph's second branch.
  size_t upload_bytes = 0;  ///< Of the copy from the host before each replay; 0: there is none.
  double capture_seconds = 0;
  std::string failure;  ///< Why the last capture failed.
};

/// The arguments of one replay.
struct Replay {
  const std::vector<Binding>& bindings;
  const int64_t* control;
  Storage* const* survivors;  ///< In the recording's order; allocated if they have no memory.
  const std::vector<Replaced>& replaced;
};

/// An argument of a generated kernel that is set before each replay: exactly one of the sources.
struct Patch {
  size_t argument;
  uint32_t value = kNone;    ///< A window on a storage, or
  uint32_t control = kNone;  ///< a control word, or
  uint32_t scratch = kNone;  ///< a group's scratch memory.
  int64_t bytes = 0;         ///< Offset within the source.
};

class Plan : NotCopied {
 public:
  /// Simplifies, fuses, plans and builds `r`, which must outlive the plan. Throws brrr::Error if
  /// kernels cannot be built. On a GPU the memory of gradients that the first replay will replace
  /// is reused for the new ones.
  static std::unique_ptr<Plan> make(const Recording& r, const StepOptions& options,
                                    const std::vector<Replaced>& replaced = {});
  /// A plan that runs op by op: nothing is fused or built. Null if any part of the step is on a
  /// GPU, where the walker serves instead.
  static std::unique_ptr<Plan> make_unfused(const Recording& r, const StepOptions& options);
  virtual ~Plan();

  /// Runs the step. On throw (memory, an index out of range) externals, and gradients that would
  /// have been replaced, are as before.
  virtual void run(const Replay& now) = 0;

  virtual Device device() const = 0;
  /// Call after a step's effects are committed, which it does not undo: throws if an external could
  /// not be copied back; with BRRR_SYNC_AFTER_REPLAY waits for the device and throws its faults.
  virtual void report_faults() const {}
  /// By survivor: whether nothing can fail from its first write on, so that it may be written into
  /// an old gradient's memory. Null if the plan handles old gradients itself.
  virtual const std::vector<bool>* safe_to_overwrite() const { return nullptr; }
  /// Whether the group is on the captured graph's second branch.
  virtual bool is_on_side_branch(uint32_t) const { return false; }
  /// Whether the plan itself holds a reference to the survivor's storage.
  virtual bool holds(size_t, const Storage*) const { return false; }

  /// Launches of a replay, and those of generated kernels among them.
  size_t kernels() const { return kernels_; }
  size_t generated_kernels() const { return generated_; }
  /// The recording that it replays: the one it was made of, or that one rematerialised.
  const Recording& recording() const { return r_; }
  const Rematerialised& rematerialised() const { return rematerialised_; }
  const Schedule& schedule() const { return schedule_; }
  const Target& target() const { return target_; }
  const MemoryPlan& memory() const { return memory_; }
  const KernelSource& source() const { return source_; }
  /// The group for which the k-th kernel of the source was first generated.
  const Group& first_user(size_t k) const {
    return schedule_.groups[schedule_.group_of[first_users_[k]]];
  }
  const ReplayCounts& counts() const { return counts_; }
  /// By group: a description of its kernels, for observers.
  const std::vector<KernelNote>& notes();

 protected:
  Plan(const Recording& r, const StepOptions& options, const Target& target);
  /// Reorders the groups; `order` must respect all dependences. Before kernels or memory are made.
  void reorder(const std::vector<uint32_t>& order);
  void plan_temporaries(const MemoryRules& rules);
  /// The name of the kernel with this `text`, a function of the name; adds it to the source unless
  /// an equal one is there.
  std::string named(const Part& part, const std::function<std::string(const std::string&)>& text);
  /// Builds the kernels, if there are any, with `first` at the beginning of the source.
  void build_source(const std::string& first, const Backend& by);
  void* symbol(const std::string& name) const { return built_by_->symbol(module_, name.c_str()); }
  /// The address in the arena, or in a room whose owners are bound.
  char* address(const MemoryPlan::Piece& x) const {
    if (x.host == kNone) return arena_ + x.offset;
    return static_cast<char*>(bound_[memory_.rooms[x.host].owners[0].first]->data) + x.offset;
  }
  Patch patch(size_t argument, uint32_t value) const {
    const Value& v = r_.value(value);
    return {.argument = argument, .value = value, .bytes = v.offset * v.item()};
  }
  /// The argument's address; control words are at `control`.
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

  const Clock::time_point begin_ = Clock::now();  // Of its construction.
  const Target target_;
  ReplayCounts counts_;
  Rematerialised rematerialised_;
  const Recording& r_;
  Schedule schedule_;
  MemoryPlan memory_;
  char* arena_ = nullptr;
  KernelSource source_;
  Storages bound_;                      // Null for storages that exist in registers only.
  std::vector<int64_t> external_item_;  // By external number: bytes of an element.
  size_t kernels_ = 0, generated_ = 0;  // The subclass adds generated kernels to both.

 private:
  KernelNote note(const Group& g) const;
  const Backend* built_by_ = nullptr;
  KernelModule* module_ = nullptr;
  std::map<std::string, std::string> names_;  // Text -> name: equal kernels are built once.
  std::vector<uint32_t> first_users_;         // By kernel of the source: an instruction of it.
  std::vector<KernelNote> notes_;
  std::vector<uint32_t> temporaries_;  // Storages in the arena and in rooms.
};

/// For steps that compute on the CPU only, and on a GPU only.
std::unique_ptr<Plan> make_host_plan(const Recording& r, const StepOptions& options);
std::unique_ptr<Plan> make_device_plan(const Recording& r, const StepOptions& options,
                                       const std::vector<Replaced>& replaced);

}  // namespace brrr::graph
