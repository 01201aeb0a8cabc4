#pragma once
// A recorded step: values, storages and instructions in flat arrays, ids into them. An instruction
// is the tape's record of a call (op, operands, attributes) without the edges.

#include <span>
#include <string>
#include <vector>

#include "core/op.h"

namespace brrr::graph {

inline constexpr uint32_t kNone = UINT32_MAX;

/// A tensor of the step: a strided window on a storage.
struct Value {
  uint32_t storage;
  DType dtype;
  uint8_t ndim;
  bool strided;    ///< Not contiguous.
  int64_t offset;  ///< In elements; of externals relative to where their storage was first used.
  int64_t numel;
  int64_t sizes[kMaxDims];
  int64_t strides[kMaxDims];

  /// Same elements of the same storage in the same row-major order (shapes may differ).
  bool same_elements(const Value& o) const;
  /// Dtype, sizes and strides are those of the tensor.
  [[gnu::always_inline]] bool is_like(const TensorImpl& t) const {
    if (dtype != t.dtype || ndim != t.ndim) return false;
    for (int i = 0; i < ndim; ++i) {
      if (sizes[i] != t.sizes[i] || strides[i] != t.strides[i]) return false;
    }
    return true;
  }
  int64_t item() const { return static_cast<int64_t>(itemsize(dtype)); }
  /// Its stride along the d-th of `dims` dims that it is broadcast to.
  int64_t stride_along(int d, int dims) const {
    const int own = d - (dims - ndim);
    return own < 0 || sizes[own] == 1 ? 0 : strides[own];
  }
  IntList size_list() const { return {sizes, ndim}; }
  IntList stride_list() const { return {strides, ndim}; }
};

/// Memory of the step.
enum class Origin : uint8_t {
  External,  ///< Existed before the step; bound anew on every call.
  Internal,  ///< Made by an instruction.
};
struct StorageInfo {
  Origin origin;
  Device device;
  size_t bytes;    ///< Of externals: what the first call's had.
  uint32_t maker;  ///< Internal: the first instruction that writes it. External: its number.
  /// Rows of `row` elements lie `pitch` apart, whatever the strides of values say, which are dense;
  /// 0: they lie as values say. So many bytes at its end are nobody's.
  int64_t row = 0, pitch = 0, spare = 0;

  /// Where what values put `elements` from the storage's begin lies; also of strides.
  int64_t laid(int64_t elements) const {
    return row ? elements / row * pitch + elements % row : elements;
  }
  /// That have so many bytes each and fill it.
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

/// What a step touches of a storage, in bytes.
struct Extent {
  int64_t low = 0, high = 0;
  uint32_t value = kNone;  ///< One that lies there; kNone: nothing does.
};

/// What a live instruction does to a storage by one operand.
struct Access {
  uint32_t instr, value;
  bool write;
};

/// What a pass needs of an instruction that most are like (one output, in place or with memory of
/// its own, few operands and dims, nothing dynamic), side by side: the call to expect and the
/// placeholder to answer it with. `op` is null for every other instruction, and after the last.
struct alignas(64) Cue {
  static constexpr int kOperands = 4, kWords = 3, kDims = 4;
  const OpDef* op;
  uint64_t form;  ///< Attrs::form(), which says how many words there are.
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
  /// By instruction: the number of all up to it. Who records on from where another recording no
  /// longer matches takes over its numbers.
  std::vector<uint64_t> prefixes;
  std::vector<std::string> paths;   ///< Distinct module paths; [0] is "".
  std::vector<int64_t> control;     ///< By control word. Of draws: counted from the step's first.
  std::vector<uint32_t> externals;  ///< External number -> storage.
  std::vector<uint32_t> survivors;  ///< Storages alive after the step, rising.
  std::vector<bool> gradients;      ///< By survivor: it became a leaf's gradient.
  uint64_t draws = 0;               ///< Numbers of the random stream that a step consumes.
  bool other_stream = false;  ///< It drew, or may have, from another stream than it began with.
  bool tf32 = false;          ///< allow_tf32(), when it was recorded.
  std::vector<bool> again;    ///< By instruction: one made anew what could be kept. Empty: none.

  // What follows from the above, once that is complete.
  std::vector<Cue> cues;      ///< Of each instruction, and one more.
  std::vector<bool> live;     ///< By instruction: it has an effect; views never do by themselves.
  std::vector<bool> lasting;  ///< By storage: it is there after the step.
  std::vector<std::vector<Access>> accesses;  ///< By storage, in program order.
  std::vector<bool> written;                  ///< By storage: a live instruction writes it.

  void complete();
  /// Gives an instruction operands of its own: so many inputs, then its results.
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
  /// Calls `f(access)` for each of several instructions' operands.
  template <class F> void each_access(const std::vector<uint32_t>& of, const F& f) const {
    for (uint32_t at : of) {
      each_operand(instrs[at], [&](uint32_t value, bool write) { f(Access{at, value, write}); });
    }
  }
  /// Operands from the inputs on through the results; kNone: a scalar.
  std::span<const uint32_t> all(const Instr& i) const {
    return std::span(operands).subspan(i.first_in, static_cast<size_t>(i.n_in) + i.n_out);
  }
  std::span<const uint32_t> in(const Instr& i) const { return all(i).first(i.n_in); }
  std::span<const uint32_t> out(const Instr& i) const { return all(i).last(i.n_out); }
  const Value& value(uint32_t id) const { return values[id]; }
  /// Whether one of them, on one storage, may write what the other uses.
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
  /// From `base` on; without, of externals from where they were first used.
  Extent extent(uint32_t storage, int64_t base = 0) const;

 private:
  void find_accesses();
};

/// What stands for the value in a pass, on a storage whose reference it takes.
Tensor placeholder(const Value& v, uint32_t id, Storage* storage);

/// Whether the instruction hands on bytes of the host: its one dynamic word is their address.
bool is_host_data(const Instr& i);

/// Why a call did not match a recording, for people.
struct Difference {
  size_t at = 0;      ///< Instruction number.
  int closeness = 0;  ///< Of two at the same instruction the greater is the smaller difference.
  std::string text;   ///< What differs; expected and found, with the module path. "": nothing.
};

}  // namespace brrr::graph
