#pragma once
// The compiler's passes: fuse -> plan -> generate. Each is a function from what the one before
// made; a schedule is a list of groups in an order that respects every dependence.

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "graph/recording.h"
#include "ops/program/program.h"

namespace brrr::graph {

/// What the instructions of a kernel iterate over.
struct Domain {
  IntList space;
  int64_t row = 0;     ///< The length of a row, the last dim of the space; 0: there are no rows.
  bool exact = false;  ///< Some operands are windows on just this shape: not every one of its size.
};
/// Instructions over one iteration space that become a program.
struct Part {
  std::vector<uint32_t> instrs;  ///< In program order.
  Domain domain;
  bool has(uint32_t instr) const { return std::binary_search(instrs.begin(), instrs.end(), instr); }
};
/// One kernel launch: parts, or one instruction of the library's.
struct Group {
  bool fused = false;
  std::vector<uint32_t> instrs;  ///< In program order.
  Domain domain;                 ///< Of a fused one that has no parts yet.
  /// Of a fused one. They run in any order, at once: nothing that one of them writes is another's.
  std::vector<Part> parts;

  const Part& part_of(uint32_t instr) const {
    return *std::find_if(parts.begin(), parts.end(), [&](const Part& p) { return p.has(instr); });
  }
};

/// How an operand of an instruction lies in a domain.
enum class Role : uint8_t {
  Each,    ///< Every element of the space has its own, in its order.
  PerRow,  ///< Every row has its own.
  Shared,  ///< Every place in the row has its own.
  One,     ///< One element for all.
  Id,      ///< A place in each row.
  Sum,     ///< A result over all rows.
  Other,   ///< A window on the shape of the instruction itself.
};
/// Of operand `k`, counted from the inputs on through the results.
Role role(const Recording& r, const Instr& i, int k, const Domain& w);
Role role(const Recording& r, const Access& a, const Domain& w);
struct Target;
/// Adds an instruction to a domain of others, if one kernel can have them all.
bool join(const Recording& r, const Target& target, const std::vector<uint32_t>& others,
          Domain& domain, uint32_t instr);
/// One domain for the instructions of both lists, if there is one: numbers for all rows join those
/// that have rows, not they them.
bool join(const Recording& r, const Target& target, const std::vector<uint32_t>& a,
          const std::vector<uint32_t>& b, const Domain& of_a, const Domain& of_b, Domain& domain);
/// Whether what a does to a value may come before what b does to it within a kernel: both are at
/// the same elements in the same order.
bool passes(const Recording& r, const Access& a, const Access& b, const Domain& w);

/// Neighbouring kernels that take their rows in equal parts, all of them one part before the next,
/// so that what one leaves is still in a cache when another needs it: groups [first, last].
struct Strip {
  uint32_t first, last;
  int64_t parts;
};
struct Strips {
  std::vector<Strip> all;  ///< In their order.
  /// By storage: the strip, into `all`, that alone needs it, part by part; kNone. Of such a storage
  /// there is memory for one part. Empty: there are none.
  std::vector<uint32_t> home;
  /// By group: bytes that a call's first part makes for all of them. Empty: none does.
  std::vector<int64_t> kept;

  /// The strip of a group; null: it is in none.
  const Strip* of(uint32_t group) const;
  /// Parts of which a storage has memory for one.
  int64_t parts(uint32_t storage) const {
    const uint32_t at = home.empty() ? kNone : home[storage];
    return at == kNone ? 1 : all[at].parts;
  }
};

struct Schedule {
  std::vector<Group> groups;
  std::vector<uint32_t> group_of;  ///< By instruction; kNone: it has no effect.
  std::vector<uint8_t> stored;     ///< By storage: some group reads or keeps its memory.
  std::vector<uint8_t> alike;      ///< By instruction: several do the same to different tensors.
  size_t removed = 0;              ///< Instructions without effect.
  bool fast = false;               ///< Numerics::Fast: 16-bit floats are rounded only when stored.
  Strips strips;                   ///< On a CPU.

  /// Fills `group_of` from `groups`.
  void number_groups(size_t instrs);
  /// The same groups in another order, into whose places `order` has their numbers.
  void reorder(const std::vector<uint32_t>& order);
  /// The first and the last group that uses a storage, kNone and 0 if none does.
  std::pair<uint32_t, uint32_t> life(const Recording& r, uint32_t storage) const;
  /// Those between which it needs memory: what is not cut to one part of a strip lasts as long as
  /// any part is run.
  std::pair<uint32_t, uint32_t> stay(const Recording& r, uint32_t storage) const;
};

/// Whether all that one of two groups writes and the other uses can be passed on in registers.
bool passes(const Recording& r, const Schedule& s, uint32_t a, uint32_t b, const Domain& w);

/// Whether the CPU's kernel of a pointwise instruction turns an operand that lies across its result
/// (ops/kinds/strided_matrix.h): alone it is as quick as one of its own.
bool reads_across(const Recording& r, const Instr& i);
/// Whether the instruction's kernel may take memory beside its outputs.
bool allocates(const Recording& r, const Instr& i);
/// The operands that a check of values looks at: those that are not floating, or all if there is no
/// such.
std::vector<uint32_t> checked_values(const Recording& r, const Instr& i);
/// Whether running the instruction can throw: for its values, and on a GPU for want of memory. On
/// the CPU a plan has memory for all that its kernels take.
bool can_fail(const Recording& r, const Instr& i);

/// What the passes ask of where a step will run.
struct Target {
  /// Whether one kernel may be handed so many windows and numbers over so many dims; null: it may.
  bool (*takes)(size_t windows, size_t numbers, int ndim) = nullptr;
  /// Library calls find numbers that vary from step to step; else generated kernels alone do.
  bool calls_read_control = true;
  /// The longest rows that a kernel folds as eager kernels do: of reductions, of row ops.
  int64_t longest_row = 1 << 16, longest_of_row_op = 1 << 16;
  /// A row op or reduction that moves so many bytes is worth a kernel for its shape.
  double worth_own_kernel = 4 << 20;
  /// A smaller value is not worth a kernel that makes it anew, if nobody has asked for the memory.
  int64_t kernel_bytes = 512 << 10;
  /// Random words are made for so many elements at once, the first of which has a multiple of that
  /// for its number.
  int64_t drawn_together = 16;
  /// Whether rows of temporaries are laid out as the library asks (OpSpec::room).
  bool lays_rows = false;
  /// What a part of a strip should move at most; 0: there are no strips.
  int64_t part_bytes = 0;
};

/// Orders the live instructions into groups; with `fuse` those that programs can be of share
/// kernels.
Schedule make_schedule(const Recording& r, bool fuse, const Target& target = {});

/// The list, sorted, each once.
std::vector<uint32_t>& distinct(std::vector<uint32_t>& list);
bool writes_external(const Recording& r, const Instr& i);
/// The same for parts whose kernels have one text, but for their operands' sizes; empty for what
/// depends on a shape.
std::string likeness(const Recording& r, const Part& p);
/// With `fuse` makes one kernel of fused groups that share values, where the order allows it and no
/// more memory is needed. Takes fused groups apart into parts, and makes one group of those that do
/// the same to different tensors: the update of a model's parameters is one kernel.
void merge_groups(const Recording& r, Schedule& s, bool fuse, const Target& target);

/// Where a kernel moves more than `part_bytes`, it and its neighbours become a strip of parts of
/// about that size. A row op or reduction that has the library's kernel gets one of its own there.
void find_strips(const Recording& r, Schedule& s, int64_t part_bytes);

/// A part of a fused group as a program.
struct GroupProgram {
  program::Program program;
  std::vector<uint32_t> values;  ///< By window: a value that it is; of places kNone.
};
/// One window for values that are the same elements walked alike: x and x.view({n, 1}) are not.
GroupProgram program_of(const Recording& r, const Part& g, const Schedule& s);
/// For people: "add relu sum", of several alike "12 times adamw".
std::string group_name(const Recording& r, const Group& g);
/// What the kernels of a fused group load and store.
double group_bytes(const Recording& r, const Schedule& s, const Group& g);

/// A library kernel with its operands, as a plan replays it.
struct LibraryCall {
  std::vector<TensorImpl*> in;
  std::vector<Tensor> keep;
  OpCall call;
  std::vector<std::pair<int, uint32_t>> dynamic;  ///< Attribute word, control word.
  LibraryCall(const OpDef& op, int n, int outputs)
      : in(static_cast<size_t>(n)), call(op, in.data(), n, outputs) {}
};
/// By storage id; null, or nothing at all: an operand has its layout and no memory.
using Storages = std::vector<Ref<Storage>>;
/// Which of the parts of an instruction in a strip a call is.
struct PartOf {
  const Strips* strips = nullptr;  ///< Null: it is the whole.
  int64_t part = 0, parts = 1;
};
std::unique_ptr<LibraryCall> make_call(const Recording& r, const Instr& i, const Storages& storages,
                                       const PartOf& of = {});

/// Memory of survivors, side by side, where temporaries may live until those are written.
struct Room {
  size_t bytes = 0;
  std::vector<std::pair<uint32_t, size_t>> owners;  ///< Survivors and where they begin; rising.
};

/// Where temporaries live: in the arena, or in a room.
struct MemoryPlan {
  /// A place in memory for the groups from `first` to `last`.
  struct Piece {
    int64_t offset = -1, bytes = 0;
    uint32_t host = kNone;  ///< The room; kNone: the arena.
    uint32_t first = 0, last = 0;
  };
  std::vector<Piece> storages;  ///< By storage; offset -1: it is no temporary.
  /// By group: its kernel's scratch memory, and what its parts keep.
  std::vector<Piece> scratch, kept;
  std::vector<Room> rooms;
  size_t arena_bytes = 0;
  size_t lower_bound_bytes = 0;  ///< The largest sum of what is live in the arena, as aligned.
  uint32_t peak = 0;             ///< The group at which most temporaries, in rooms too, are live.
  size_t in_place = 0, in_place_candidates = 0;
  size_t hosted = 0;  ///< Temporaries in rooms.
};
/// What a plan's memory has to respect.
struct MemoryRules {
  std::vector<Room> rooms;       ///< They may take in temporaries
  uint32_t from = 0;             ///< which are born in this group or later.
  std::vector<int64_t> scratch;  ///< Bytes that a group's kernel takes, by group, if any does.
  /// By group: the last one during which it may still run (Branches::until). Empty: itself.
  std::vector<uint32_t> until = {};
};
MemoryPlan plan_memory(const Recording& r, const Schedule& s, const MemoryRules& rules = {});

/// Throws if two temporaries that are live at once overlap, or one is used outside its life.
void verify_memory(const Recording& r, const Schedule& s, const MemoryPlan& m);
/// Throws if a group comes before something that it depends on.
void verify_schedule(const Recording& r, const Schedule& s);

}  // namespace brrr::graph
