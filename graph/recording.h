#pragma once
// A recorded step: flat arrays of values, storages and instructions, which refer to each other by
// index. An instruction is the tape's record of a call (op, operands, attributes) without edges.

#include <span>
#include <string>
#include <vector>

#include "core/op.h"

namespace brrr::graph {

inline constexpr uint32_t kNone = UINT32_MAX;

/// A tensor of the step: a window, that is an offset, sizes and strides, on a storage.
struct Value {
  uint32_t storage;
  DType dtype;
  uint8_t ndim;
  bool strided;    ///< Not contiguous.
  int64_t offset;  ///< In elements; of externals relative to the first use of the storage.
  int64_t numel;
  int64_t sizes[kMaxDims];
  int64_t strides[kMaxDims];

  /// Whether both are the same elements of one storage in the same row-major order.
  bool same_elements(const Value& o) const;
  /// Whether dtype, sizes and strides are those of the tensor.
  [[gnu::always_inline]] bool is_like(const TensorImpl& t) const {
    if (dtype != t.dtype || ndim != t.ndim) return false;
    for (int i = 0; i < ndim; ++i) {
      if (sizes[i] != t.sizes[i] || strides[i] != t.strides[i]) return false;
    }
    return true;
  }
  int64_t item() const { return static_cast<int64_t>(itemsize(dtype)); }
  /// The stride along dim `d` of the `dims` dims that the value is broadcast to; 0: broadcast.
  int64_t stride_along(int d, int dims) const {
    const int own = d - (dims - ndim);
    return own < 0 || sizes[own] == 1 ? 0 : strides[own];
  }
  IntList size_list() const { return {sizes, ndim}; }
  IntList stride_list() const { return {strides, ndim}; }
};

/// Memory of the step.
enum class Origin : uint8_t {
  External,  ///< Existed before the step; rebound on every call.
  Internal,  ///< Made by an instruction.
};
struct StorageInfo {
  Origin origin;
  Device device;
  size_t bytes;    ///< Of externals: of the first call's storage.
  uint32_t maker;  ///< Internal: the first instruction that writes it. External: its number.
  /// Padded rows (pad_rows.cpp): rows of `row` elements begin `pitch` elements apart, although the
  /// strides of values stay dense; 0: not padded. `spare`: unused bytes at the end.
  int64_t row = 0, pitch = 0, spare = 0;

  /// The offset or stride in memory, in elements, of a dense one.
  int64_t padded(int64_t elements) const {
    return row ? elements / row * pitch + elements % row : elements;
  }
  /// The number of elements of `item` bytes that the storage holds, without padding.
  int64_t elements(int64_t item) const {
    const int64_t all = (static_cast<int64_t>(bytes) - spare) / item;
    return row ? all / pitch * row : all;
  }
};

struct Instr {
  const OpDef* op;
  uint32_t first_in;   ///< Into Recording::operands; kNone entries are scalars.
  uint32_t first_out;  ///< Into Recording::operands too: destinations when `into`, else new values.
  uint16_t n_in;
  uint8_t n_out;
  bool into;
  uint32_t path;     ///< Module path, into Recording::paths.
  uint32_t control;  ///< First control word of the dynamic attributes.
  Attrs attrs;
};

/// The byte range of a storage that a step accesses.
struct Extent {
  int64_t low = 0, high = 0;
  uint32_t value = kNone;  ///< A value in the range; kNone: there is none, the range is empty.
};

/// One operand's read or write of a storage by a live instruction.
struct Access {
  uint32_t instr, value;
  bool write;
};

/// The fast path of a pass: for a common instruction (one output, in place or with memory of its
/// own, few operands and dims, nothing dynamic) the expected call and the placeholder that answers
/// it, in contiguous memory. `op` is null for every other instruction, and after the last.
struct alignas(64) Cue {
  static constexpr int kOperands = 4, kWords = 3, kDims = 4;
  const OpDef* op;
  uint64_t form;  ///< Attrs::form(), which includes the number of words.
  uint16_t n_in;
  bool into;
  uint32_t in[kOperands], out;
  int64_t words[kWords];
  std::byte tensor[offsetof(TensorImpl, storage)], storage[offsetof(Storage, pass)];
  int64_t sizes[kDims], strides[kDims];
};

struct Recording {
  std::vector<Value> values;
  std::vector<StorageInfo> storages;
  std::vector<Instr> instrs;
  std::vector<uint32_t> operands;
  /// By instruction: an id of the prefix that ends there. A recording that branches off another one
  /// keeps its ids: equal ids are equal prefixes.
  std::vector<uint64_t> prefixes;
  std::vector<std::string> paths;   ///< Distinct module paths; [0] is "".
  std::vector<int64_t> control;     ///< By control word: of draws the offset from the step's first.
  std::vector<uint32_t> externals;  ///< External number -> storage.
  std::vector<uint32_t> survivors;  ///< Internal storages alive after the step, ascending.
  std::vector<bool> gradients;      ///< By survivor: it became a leaf's gradient.
  uint64_t draws = 0;               ///< Draws that a step takes from the random stream.
  bool other_stream = false;  ///< It drew, or may have, from another stream than it began with.
  bool tf32 = false;          ///< allow_tf32() when it was recorded.
  std::vector<bool> again;    ///< By instruction: it recomputes a value. Empty: none does.

  // Derived from the above by complete().
  std::vector<Cue> cues;      ///< One per instruction, and an empty one at the end.
  std::vector<bool> live;     ///< By instruction: it has an effect; views never do by themselves.
  std::vector<bool> lasting;  ///< By storage: it exists after the step.
  std::vector<std::vector<Access>> accesses;  ///< By storage, in program order.
  std::vector<bool> written;                  ///< By storage: a live instruction writes it.

  void complete();
  /// Appends new operands for an instruction: `n_in` inputs, then its results.
  void put_operands(Instr& i, size_t n_in, const std::vector<uint32_t>& all) {
    i.first_in = static_cast<uint32_t>(operands.size());
    i.n_in = static_cast<uint16_t>(n_in);
    i.first_out = i.first_in + i.n_in;
    operands.insert(operands.end(), all.begin(), all.end());
  }
  /// Calls `f(value, written)` for each operand that is a tensor, in order.
  template <class F> void each_operand(const Instr& i, const F& f) const {
    for (uint32_t k = i.first_in; k < i.first_out + i.n_out; ++k) {
      if (operands[k] != kNone) f(operands[k], k >= i.first_out);
    }
  }
  /// Calls `f(access)` for each tensor operand of several instructions.
  template <class F> void each_access(const std::vector<uint32_t>& of, const F& f) const {
    for (uint32_t at : of) {
      each_operand(instrs[at], [&](uint32_t value, bool write) { f(Access{at, value, write}); });
    }
  }
  /// All operands: inputs, then results; kNone: a scalar.
  std::span<const uint32_t> all(const Instr& i) const {
    return std::span(operands).subspan(i.first_in, static_cast<size_t>(i.n_in) + i.n_out);
  }
  std::span<const uint32_t> in(const Instr& i) const { return all(i).first(i.n_in); }
  std::span<const uint32_t> out(const Instr& i) const { return all(i).last(i.n_out); }
  const Value& value(uint32_t id) const { return values[id]; }
  /// Whether two accesses to one storage may overlap and one of them writes.
  bool conflict(const Access& a, const Access& b) const {
    return (a.write || b.write) && !apart(values[a.value], values[b.value]);
  }
  /// "%7 float32[32, 10]".
  std::string describe(uint32_t value) const;
  /// "mlp.fc1: relu(%3 ...) -> %4 ...".
  std::string describe(const Instr& i) const;
  bool survives(uint32_t storage) const {
    return lasting[storage] && storages[storage].origin == Origin::Internal;
  }
  /// With `base` (elements, Binding::base) added; without it, of externals relative to first use.
  Extent extent(uint32_t storage, int64_t base = 0) const;

 private:
  void find_accesses();
};

/// The placeholder tensor of a value in a pass; takes over the caller's reference to `storage`.
Tensor placeholder(const Value& v, uint32_t id, Storage* storage);

/// Whether the instruction copies in host data: its one dynamic word is their address.
bool is_host_data(const Instr& i);

/// Why a call did not match a recording, for messages.
struct Difference {
  size_t at = 0;      ///< Instruction number.
  int closeness = 0;  ///< At one instruction: the greater, the smaller the difference.
  std::string text;   ///< What differs: expected and found, with the module path. "": nothing.
};

}  // namespace brrr::graph
