#pragma once
// The compiler's passes: simplify -> fuse -> plan -> generate. Each is a function from what the
// one before made; a schedule is a list of groups in an order that respects every dependence.

#include <string>
#include <vector>

#include "graph/recording.h"

namespace brrr::graph {

/// One kernel launch: a run of pointwise instructions over one iteration space, or one instruction
/// of another kind.
struct Group {
  bool fused = false;
  std::vector<uint32_t> instrs;  ///< In program order.
  IntList space;                 ///< Fused: the logical shape that all of them iterate over.
};

struct Schedule {
  std::vector<Group> groups;
  std::vector<uint8_t> stored;  ///< By storage: some group reads or keeps its memory.
  size_t removed = 0;           ///< Instructions without effect.
  bool fast = false;            ///< Numerics::Fast: 16-bit floats are rounded only when stored.
};

/// Whether running the instruction by itself can throw, for want of memory or for its values.
bool can_fail(const Recording& r, const Instr& i);

/// Which instructions have an effect on a survivor or an external; views never do by themselves.
std::vector<bool> live_instructions(const Recording& r);

/// Orders the live instructions into groups; with `fuse` pointwise ones share kernels.
Schedule make_schedule(const Recording& r, bool fuse);

/// How long the text of pointwise instructions is, for one vector: what a compiler pays for.
struct TextSize {
  size_t lines = 0;
  size_t polynomials = 0;  ///< Long chains; two conversions of 16-bit floats count as one.
  TextSize& operator+=(const TextSize& o);
};
TextSize text_size(const Recording& r, const Instr& i);

/// What a kernel holds.
struct KernelSize {
  size_t instrs = 0;
  size_t in_memory = 0;  ///< Different values that it loads or stores.
  size_t numbers = 0;    ///< Operands that are no tensors.
  size_t polynomials = 0;
  /// Whether one kernel may hold so much, over a space of so many dims.
  bool allowed(int ndim) const;
};
/// A move of a kernel that makes values live longer may cost so many bytes.
constexpr int64_t kLittleMemory = 4096;
/// All tensors are dense in the order of its space: a pointwise instruction that fits any space of
/// its size.
bool flat(const Recording& r, const Instr& i);
bool writes_external(const Recording& r, const Instr& i);
/// Makes one kernel of a fused group and one that reads its results, where the order allows it and
/// no more memory is needed.
void merge_groups(const Recording& r, Schedule& s);

/// Where temporaries live: in the arena, or in the memory of a survivor that is written later.
struct MemoryPlan {
  std::vector<int64_t> offset;  ///< By storage; -1: it is no temporary.
  std::vector<uint32_t> host;   ///< By storage: the survivor it lives in; kNone: the arena.
  size_t arena_bytes = 0;
  size_t lower_bound_bytes = 0;  ///< The largest sum of live temporaries, as aligned.
  size_t in_place = 0, in_place_candidates = 0;
  size_t hosted = 0;                  ///< Temporaries in survivors.
  std::vector<uint32_t> first, last;  ///< By storage: groups between which it is live.
};
/// Survivors in `hosts` may take in temporaries that are born in group `from` or later.
MemoryPlan plan_memory(const Recording& r, const Schedule& s,
                       const std::vector<uint32_t>& hosts = {}, uint32_t from = 0);

/// Throws if two temporaries that are live at once overlap, or one is used outside its life.
void verify_memory(const Recording& r, const Schedule& s, const MemoryPlan& m);
/// Throws if a group comes before something that it depends on.
void verify_schedule(const Recording& r, const Schedule& s);

/// An operand of a generated kernel: an address that is handed over at launch.
struct KernelArgument {
  uint32_t value = kNone;    ///< A window on a storage, or
  uint32_t control = kNone;  ///< a control word.
};
/// Text of a fused group and what to launch it with.
struct KernelText {
  std::string body;  ///< Function text after its name: "(char* const* a, ...".
  std::vector<KernelArgument> arguments;
  int64_t extent = 0;  ///< Of the dim that a launch splits.
  int64_t grain = 1;   ///< Least part of it worth a thread.
};
KernelText generate(const Recording& r, const Group& g, const Schedule& s);

}  // namespace brrr::graph
