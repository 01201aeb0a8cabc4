#pragma once
// The compiler's passes: fuse -> plan -> generate. Each takes the output of the one before. A
// schedule is a list of groups in an order that respects every dependence.

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "graph/recording.h"
#include "ops/program/program.h"

namespace brrr::graph {

/// The iteration space of a kernel.
struct Domain {
  IntList space;
  int64_t row = 0;     ///< The length of a row, the last dim of the space; 0: there are no rows.
  bool exact = false;  ///< Some operands have strides for exactly this shape: it cannot be changed.
};
/// Instructions over one iteration space that become one program.
struct Part {
  std::vector<uint32_t> instrs;  ///< In program order.
  Domain domain;
  bool has(uint32_t instr) const { return std::binary_search(instrs.begin(), instrs.end(), instr); }
};
/// One kernel launch: the parts of a generated kernel, or one instruction with a library kernel.
struct Group {
  bool fused = false;            ///< Its kernel is generated, also of a single instruction.
  std::vector<uint32_t> instrs;  ///< In program order.
  Domain domain;                 ///< If fused, until it has parts.
  /// If fused. Parts are independent and run in any order: none uses what another one writes.
  std::vector<Part> parts;

  const Part& part_of(uint32_t instr) const {
    return *std::find_if(parts.begin(), parts.end(), [&](const Part& p) { return p.has(instr); });
  }
};

/// How an operand of an instruction is indexed in a domain.
enum class Role : uint8_t {
  Each,    ///< One element per element of the space, in row-major order.
  PerRow,  ///< One element per row.
  Shared,  ///< One element per column, shared by all rows.
  One,     ///< One element for the whole space.
  Id,      ///< A column index per row.
  Sum,     ///< A result reduced over the rows.
  Other,   ///< Strided over the instruction's own shape.
};
/// The role of operand `k`, where results follow the inputs.
Role role(const Recording& r, const Instr& i, int k, const Domain& w);
Role role(const Recording& r, const Access& a, const Domain& w);
struct Target;
/// Extends the domain of `others` to an instruction; false if one kernel cannot run them all.
bool join(const Recording& r, const Target& target, const std::vector<uint32_t>& others,
          Domain& domain, uint32_t instr);
/// Finds one domain for the instructions of both lists; false if there is none. Tries both orders:
/// scalars for all rows can be added to instructions that have rows, but not these to them.
bool join(const Recording& r, const Target& target, const std::vector<uint32_t>& a,
          const std::vector<uint32_t>& b, const Domain& of_a, const Domain& of_b, Domain& domain);
/// Whether access a may precede access b within one kernel, the value passing in a register: both
/// use the same elements in the same order.
bool passes(const Recording& r, const Access& a, const Access& b, const Domain& w);

/// A strip: neighbouring groups [first, last] whose rows are cut into equal parts. All of its
/// kernels run for one part before the next, so that a kernel's results are still in cache when
/// another one reads them.
struct Strip {
  uint32_t first, last;
  int64_t parts;
};
struct Strips {
  std::vector<Strip> all;  ///< Ascending.
  /// By storage: the only strip, an index into `all`, that uses it, and part by part; else kNone.
  /// Such a storage has memory for one part. Empty: there are no strips.
  std::vector<uint32_t> home;
  /// By group: bytes that a call's first part computes for all parts. Empty: none does.
  std::vector<int64_t> kept;

  /// The strip of a group; null if it is in none.
  const Strip* of(uint32_t group) const;
  /// The number of parts of which a storage holds one at a time; 1: it holds all of it.
  int64_t parts(uint32_t storage) const {
    const uint32_t at = home.empty() ? kNone : home[storage];
    return at == kNone ? 1 : all[at].parts;
  }
};

struct Schedule {
  std::vector<Group> groups;
  std::vector<uint32_t> group_of;  ///< By instruction; kNone: it has no effect.
  std::vector<uint8_t> stored;     ///< By storage: it has memory, not just registers of one kernel.
  std::vector<uint8_t> alike;      ///< By instruction: several do the same to different tensors.
  size_t removed = 0;              ///< The number of instructions without effect.
  bool fast = false;               ///< Numerics::Fast: 16-bit floats are rounded only when stored.
  Strips strips;                   ///< CPU only.

  /// Fills `group_of` from `groups`.
  void number_groups(size_t instrs);
  /// Permutes the groups: new group k is old group `order[k]`.
  void reorder(const std::vector<uint32_t>& order);
  /// The first and the last group that uses a storage; kNone and 0 if none does.
  std::pair<uint32_t, uint32_t> life(const Recording& r, uint32_t storage) const;
  /// The live range of its memory: life(), extended to the ends of a strip unless the storage is
  /// cut to one part.
  std::pair<uint32_t, uint32_t> stay(const Recording& r, uint32_t storage) const;
};

/// Whether every value that one of two groups writes and the other uses can pass in registers.
bool passes(const Recording& r, const Schedule& s, uint32_t a, uint32_t b, const Domain& w);

/// Whether the CPU kernel of a pointwise instruction transposes blocks of an operand strided in
/// the inner loop (ops/kinds/strided_matrix.h): a generated one would be no faster.
bool reads_transposed(const Recording& r, const Instr& i);
/// Whether the instruction's kernel may allocate memory besides its outputs.
bool allocates(const Recording& r, const Instr& i);
/// The operands that a value check reads: those that are not floating, or all if there are none.
std::vector<uint32_t> checked_values(const Recording& r, const Instr& i);
/// Whether running the instruction can throw: by its value check, and on a GPU for lack of memory.
/// On the CPU a plan has memory for everything that its kernels allocate.
bool can_fail(const Recording& r, const Instr& i);

/// Parameters of the device that the passes compile for.
struct Target {
  /// Whether one kernel may have so many windows and scalars over so many dims; null: always.
  bool (*takes)(size_t windows, size_t numbers, int ndim) = nullptr;
  /// Whether library calls can read control words; else only generated kernels can.
  bool calls_read_control = true;
  /// The longest rows that a generated kernel folds as eager kernels do: of reductions, of row ops.
  int64_t longest_row = 1 << 16, longest_of_row_op = 1 << 16;
  /// A row op or reduction that moves this many bytes is worth a generated kernel for its shape.
  double worth_own_kernel = 4 << 20;
  /// The smallest value that is worth a kernel to recompute it, if there is no memory budget.
  int64_t kernel_bytes = 512 << 10;
  /// Random words are generated for this many elements at once, beginning at a multiple of it.
  int64_t draw_block = 16;
  /// Whether rows of temporaries are padded as library kernels prefer (OpSpec::room).
  bool pads_rows = false;
  /// Bytes that a part of a strip should move at most; 0: no strips.
  int64_t part_bytes = 0;
};

/// Orders the live instructions into groups; with `fuse`, instructions share generated kernels.
Schedule make_schedule(const Recording& r, bool fuse, const Target& target = {});

/// Sorts the list and removes duplicates; returns it.
std::vector<uint32_t>& distinct(std::vector<uint32_t>& list);
bool writes_external(const Recording& r, const Instr& i);
/// A key that is equal for parts with the same kernel text up to their sizes; empty if the text
/// depends on the shape.
std::string part_key(const Recording& r, const Part& p);
/// With `fuse`, merges fused groups that share values where dependences allow it and no more memory
/// is needed. Splits fused groups into independent parts, and gathers parts that do the same to
/// different tensors into one group: the update of a model's parameters is one kernel.
void merge_groups(const Recording& r, Schedule& s, bool fuse, const Target& target);

/// Makes strips of kernels that move more than `part_bytes` and their neighbours, with parts of
/// about that size. Row ops and reductions with a library kernel get a generated one there.
void find_strips(const Recording& r, Schedule& s, int64_t part_bytes);

/// A part of a fused group as a program.
struct GroupProgram {
  program::Program program;
  std::vector<uint32_t> values;  ///< By window: a value that it stands for; kNone: index windows.
};
/// Values share a window if they are the same elements with the same strides over the space.
GroupProgram program_of(const Recording& r, const Part& g, const Schedule& s);
/// For messages: "add relu sum"; of several parts "12 times adamw".
std::string group_name(const Recording& r, const Group& g);
/// Bytes that the kernels of a fused group load and store.
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
/// By storage id. Null, or an empty list: operands have layout but no memory.
using Storages = std::vector<Ref<Storage>>;
/// Which part of an instruction in a strip a call runs.
struct PartOf {
  const Strips* strips = nullptr;  ///< Null: the whole.
  int64_t part = 0, parts = 1;
};
std::unique_ptr<LibraryCall> make_call(const Recording& r, const Instr& i, const Storages& storages,
                                       const PartOf& of = {});

/// Contiguous memory of survivors, where temporaries may live until the survivors are written.
struct Room {
  size_t bytes = 0;
  std::vector<std::pair<uint32_t, size_t>> owners;  ///< Survivors and byte offsets, ascending.
};

/// Placement of temporaries: in the arena, or in a room.
struct MemoryPlan {
  /// A memory block that is live in groups [first, last].
  struct Piece {
    int64_t offset = -1, bytes = 0;
    uint32_t host = kNone;  ///< The room; kNone: the arena.
    uint32_t first = 0, last = 0;
  };
  std::vector<Piece> storages;  ///< By storage; offset -1: not a temporary in memory.
  /// By group: scratch memory of its kernel, and Strips::kept.
  std::vector<Piece> scratch, kept;
  std::vector<Room> rooms;
  size_t arena_bytes = 0;
  size_t lower_bound_bytes = 0;  ///< The largest sum of aligned bytes live at once in the arena.
  uint32_t peak = 0;             ///< The group with most bytes of temporaries live, rooms included.
  size_t in_place = 0, in_place_candidates = 0;
  size_t hosted = 0;  ///< Temporaries in rooms.
};
/// Constraints of a memory plan.
struct MemoryRules {
  std::vector<Room> rooms;       ///< Rooms for temporaries
  uint32_t from = 0;             ///< whose live range begins at this group or later.
  std::vector<int64_t> scratch;  ///< By group: scratch bytes of its kernel. Empty: none.
  /// By group: the last group during which it may still run (Branches::until). Empty: itself.
  std::vector<uint32_t> until = {};
};
MemoryPlan plan_memory(const Recording& r, const Schedule& s, const MemoryRules& rules = {});

/// Throws if temporaries that are live at once overlap, or one lies outside its memory.
void verify_memory(const Recording& r, const Schedule& s, const MemoryPlan& m);
/// Throws if a group comes before something that it depends on.
void verify_schedule(const Recording& r, const Schedule& s);

}  // namespace brrr::graph
