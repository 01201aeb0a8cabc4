#pragma once
// A pass: one call of a step's function in metadata-only mode. Ops are compared with a recording
// while one matches; from the first difference on, the same pass records: no function runs twice.

#include "core/address_set.h"
#include "core/context.h"
#include "core/rng.h"
#include "core/tensor.h"
#include "graph/recording.h"

namespace brrr::graph {

/// An external storage as a pass found it.
struct Binding {
  Ref<Storage> storage;
  int64_t base = 0;  ///< Element offset of its first use; offsets of values are relative to it.
};

/// A new storage with the same contents.
Ref<Storage> clone_storage(const Storage& s);

/// Whether two of the storages overlap in foreign memory (from_blob without a copy).
bool share_memory(const std::vector<Binding>& bindings);

/// A gradient that only its leaf holds, and the survivor that replaces it.
struct Replaced {
  TensorImpl* old;
  size_t survivor;
  const TensorImpl* leaf;
};

/// Side effects of a call, apart from the writes of its replay: a frozen step repeats them without
/// running the function.
struct Effects {
  struct Gradient {
    Tensor leaf;
    uint32_t value = kNone;  ///< kNone: the gradient was cleared.
    bool had;                ///< There was one before the call.
    View view = View::No;
    uint32_t same = kNone;  ///< Index of an earlier gradient or, after these, result that is the
                            ///< same object; or kNone.
    bool stays = false;     ///< It was only tested for, not changed.
  };
  struct Result {
    uint32_t value;
    View view;
    uint32_t same;
  };
  /// A control cell that the call has set.
  struct Mark {
    Ref<ControlCell> cell;
    double before, after;
  };
  std::vector<Binding> bindings;
  std::vector<Result> results;
  std::vector<Gradient> gradients;
  std::vector<uint32_t> written;  ///< External numbers, once per write.
  /// Source of each control word; null: host data, or a scalar that varied between calls.
  std::vector<Ref<ControlCell>> cells;
  std::vector<Mark> marks;

  /// The index of the gradient that is `t`, or kNone.
  uint32_t gradient(const TensorImpl* t) const;
  void clear() noexcept;
};

class Pass final : public Recorder {
 public:
  ~Pass() override;

  /// Starts a pass that compares with `candidates` (best first; they outlive the pass). With
  /// `watch` it copies each host storage from outside when the function first uses it.
  void begin(const std::vector<const Recording*>& candidates, bool watch = false);
  /// Replaces a run of the function, whose recording is the first candidate: applies its effects,
  /// journalled, and makes the results that it would return. Takes over `bindings`, those of this
  /// call. A gradient that only its leaf holds and whose memory is `safe` to overwrite (by
  /// survivor; null: none is) stays in place and becomes the new one.
  void play(const Effects& e, std::vector<Binding>& bindings, std::vector<Tensor>& results,
            const std::vector<bool>* safe);
  /// Call when the function has returned. Returns the index of the candidate that it matched, or -1
  /// if `recording()` is a new one.
  int finish();
  /// `recording()` has been moved to `r`, which outlives the pass.
  void moved_to(const Recording& r);
  /// Undoes every metadata change. Placeholders that are still held become unreadable.
  void abort() noexcept;
  /// After finish(): collects the function's effects. It allocates: call it before the step runs.
  void collect_effects();
  /// Call when survivors have their memory: placeholders become ordinary tensors.
  void commit() noexcept;
  /// Releases everything from outside; if given, `keep`, which is empty, takes over all effects but
  /// the results.
  void release(Effects* keep) noexcept;

  // --- Recorder ----------------------------------------------------------------------------------
  void op(OpCall& call) override;
  Tensor host_data(const void* data, const Meta& meta) override;
  Tensor host_values(const TensorImpl& t) override;
  void journal(TensorImpl& t, Field f) override;
  void journal(ControlCell& cell) override;
  void journal(Node& node) override;
  uint32_t journalled_views(const Storage& s) override;

  Recording& recording() { return recording_; }
  const std::vector<Binding>& bindings() const { return bindings_; }
  /// With `watch`, by external number: a copy of the storage when the function first used it; null
  /// for device memory, which no host pointer can write.
  const std::vector<Ref<Storage>>& first_seen() const { return first_seen_; }
  /// Control words: values of the dynamic attribute words in order of use.
  const std::vector<int64_t>& control() const { return control_; }
  /// Where the pass stopped matching the candidate that it matched longest; "" if it never did.
  const std::string& difference() const { return difference_.text; }
  /// The external number of a storage, or kNone.
  uint32_t external_of(const Storage& s) const { return by_address_[slot_of(s)]; }
  /// The placeholder of a storage; null if it died.
  Storage* live(uint32_t storage) const { return live_[storage]; }
  /// After finish(), and moved_to() if there is a new recording: gradients that the pass replaces.
  void find_replaced(std::vector<Replaced>& list) const;
  /// An effect of the function that a frozen step could not repeat; null if there is none.
  const char* host_effect() const { return host_effect_; }

 private:
  /// The first difference of a call from an instruction.
  struct Mismatch {
    /// After Attributes, each is a smaller difference than the one before.
    enum Kind : uint8_t { None, Op, Results, Attributes, Operand, SameShape, Word } kind = None;
    int at = 0;  ///< The attribute word, or the operand, with destinations after the inputs.
    explicit operator bool() const { return kind != None; }
  };

  size_t cursor() const;
  void expect(const Recording* r, size_t cursor = 0);
  void make_slots(size_t count);
  bool matches(const Cue& e, const OpCall& c) const;
  /// Without a mismatch, externals that the operands have bound stay bound.
  Mismatch mismatch(const Instr& e, const OpCall& c);
  static const TensorImpl* operand(const OpCall& c, int k) {
    return k < c.n_in ? c.in[k] : c.out[k - c.n_in].impl();
  }
  bool match_operand(uint32_t id, const TensorImpl* t);
  bool match_bound(uint32_t id, const TensorImpl* t) const;
  void answer(const Cue& e, OpCall& c);
  void general_op(OpCall& c);
  void record_control(const Instr& e, const OpCall& c);
  void make_placeholders(const Recording& r, const Instr& e, uint32_t index, OpCall& c);
  bool survivors_match(const Recording& r) const;
  bool switch_candidate(const OpCall* c);
  void begin_recording();
  void keep_closest_difference(const OpCall* c);
  std::string describe_difference(const OpCall* c, const Mismatch& m) const;

  void record(OpCall& c);
  uint16_t varying_words(const OpCall& c, const std::vector<uint32_t>& ids);
  uint32_t operand_id(const TensorImpl* t);
  uint32_t add_value(DType dtype, const IntList& sizes, const IntList& strides, int64_t offset,
                     uint32_t storage);
  Storage* placeholder_storage(uint32_t id, const StorageInfo& info);
  void bind(const TensorImpl& t, int64_t relative);
  void unbind(size_t count);
  size_t slot_of(const Storage& s) const;
  bool keep_gradient(TensorImpl* old, uint32_t id, View view, const std::vector<bool>* safe);
  void forget_changes() noexcept;
  static void forget(Storage& s) noexcept {
    std::atomic_ref(s.pass).store(nullptr, std::memory_order_release);
  }
  void drop_unreferenced();
  bool draws_in_turn() const;

  std::vector<const Recording*> candidates_;
  const Recording* expected_ = nullptr;         // Null while recording.
  const Cue* next_ = nullptr;                   // Of `expected_`; one without op while recording.
  Recording recording_;                         // The new recording.
  std::vector<std::vector<uint32_t>> windows_;  // By storage: its values in recording_.
  const Recording* parent_ = nullptr;  // Branched off it; null once an op is unlike its op.
  bool resized_ = false;               // One of these has operands of other sizes.
  Difference difference_;

  std::vector<Binding> bindings_;     // By external number.
  std::vector<uint32_t> by_address_;  // Hash table of their numbers, linear probing; kNone: free.
  std::vector<Ref<Storage>> first_seen_;
  bool watch_ = false;
  std::vector<Storage*> live_;  // By storage id; null for externals and the dead.
  std::vector<int64_t> control_;
  std::vector<std::pair<Tensor, uint32_t>> host_bytes_;  // Copies of host data, by storage id.
  RngState rng_before_;
  uint64_t drawn_before_ = 0;  // Draws of this thread before the pass.
  bool active_ = false;        // Between begin and commit or abort.

  struct Change {
    Field field;
    Ref<TensorImpl> tensor, grad;
    Ref<Node> grad_fn;
    uint8_t flags, output;
    uint32_t version;
    Ref<Storage> storage;  ///< For Field::Version, instead of a tensor.
  };
  std::vector<Change> changes_;
  std::vector<std::pair<Ref<ControlCell>, double>> cells_;
  AddressSet leaves_;         // Leaves whose gradients have changed: collect_effects()'s scratch.
  AddressSet met_gradients_;  // Gradients with other holders: only one met twice is searched for.
  AddressSet flagged_;        // Tensors whose requires_grad before the pass is journalled.
  std::vector<Ref<Node>> consumed_nodes_;  // Tape nodes that backward has consumed.
  Effects effects_;                        // Without bindings and results.
  bool played_ = false;
  const char* host_effect_ = nullptr;
};

}  // namespace brrr::graph
