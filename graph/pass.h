#pragma once
// One call of a step's function in metadata-only mode. Every op is compared with a recording while
// one matches; from the first difference on, the same pass records. The function never runs twice.

#include "core/address_set.h"
#include "core/context.h"
#include "core/rng.h"
#include "core/tensor.h"
#include "graph/recording.h"

namespace brrr::graph {

/// An external storage as a pass found it.
struct Binding {
  Ref<Storage> storage;
  int64_t base = 0;  ///< Element offset of its first use; values' offsets count from here.
};

/// Memory of its own with the same contents.
Ref<Storage> clone_storage(const Storage& s);

/// Whether memory that is not ours (from_blob without a copy) lies in two of them.
bool share_memory(const std::vector<Binding>& bindings);

/// A gradient that nobody but its leaf had, and the survivor that replaces it.
struct Replaced {
  TensorImpl* old;
  size_t survivor;
  const TensorImpl* leaf;  ///< Whose gradient it is.
};

/// What a call did outside itself besides its replay's writes, to be done again without the
/// function.
struct Effects {
  struct Gradient {
    Tensor leaf;
    uint32_t value = kNone;  ///< kNone: it was taken away.
    bool had;                ///< There was one before the call.
    View view = View::No;
    uint32_t same = kNone;  ///< The number of an earlier gradient or, counted on, result that is
                            ///< this very object; or kNone.
    bool stays = false;     ///< It was looked for only.
  };
  struct Result {
    uint32_t value;
    View view;
    uint32_t same;
  };
  /// Set by the call.
  struct Mark {
    Ref<ControlCell> cell;
    double before, after;
  };
  std::vector<Binding> bindings;
  std::vector<Result> results;
  std::vector<Gradient> gradients;
  std::vector<uint32_t> written;  ///< External numbers, once per write.
  /// Where each control word comes from; null: host data or a number that was seen to vary.
  std::vector<Ref<ControlCell>> cells;
  std::vector<Mark> marks;

  /// The number of the gradient that is `t`, or kNone.
  uint32_t gradient(const TensorImpl* t) const;
  void clear() noexcept;
};

class Pass final : public Recorder {
 public:
  ~Pass() override;

  /// Starts a pass that compares with `candidates` (best first; they outlive the pass). With
  /// `watch` it keeps what host memory from outside holds when the function first uses it.
  void begin(const std::vector<const Recording*>& candidates, bool watch = false);
  /// In place of the function, whose recording is the first candidate: the effects, journalled, and
  /// the results that it would return. Takes over `bindings`, which are those of this call. A
  /// gradient that only its leaf has, and whose memory is `safe` to write (by
  /// survivor; null: none is), stays where it is and becomes the new one.
  void play(const Effects& e, std::vector<Binding>& bindings, std::vector<Tensor>& results,
            const std::vector<bool>* safe);
  /// The function has returned: the index of the candidate that it matched, or -1 when
  /// `recording()` is a new one.
  int finish();
  /// `recording()` has been moved to `r`, which outlives the pass.
  void moved_to(const Recording& r);
  /// Undoes every metadata change. Placeholders that are still held become unreadable.
  void abort() noexcept;
  /// After finish(), what the function did outside itself. It takes memory: before the step runs.
  void note_effects();
  /// Survivors have their memory now: placeholders become ordinary tensors.
  void commit() noexcept;
  /// Lets go of everything from outside; `keep`, which is empty, takes it over if given: all
  /// effects but the results.
  void release(Effects* keep) noexcept;

  // --- Recorder ----------------------------------------------------------------------------------
  void op(OpCall& call) override;
  Tensor host_data(const void* data, const Meta& meta) override;
  Tensor host_values(const TensorImpl& t) override;
  void journal(TensorImpl& t, Field f) override;
  void journal(ControlCell& cell) override;
  void journal(Node& node) override;
  uint32_t kept_views(const Storage& s) override;

  Recording& recording() { return fresh_; }
  const std::vector<Binding>& bindings() const { return bindings_; }
  /// Of a pass that watches, by external number: a copy of the storage from when the function first
  /// used it; null for memory of a device, which no pointer of the host's reaches.
  const std::vector<Ref<Storage>>& first_seen() const { return first_seen_; }
  /// Dynamic attribute words in order of use.
  const std::vector<int64_t>& control() const { return control_; }
  /// Where the pass stopped matching the candidate that it matched longest; "" if it never did.
  const std::string& difference() const { return difference_.text; }
  /// The number of a storage from outside, or kNone.
  uint32_t external_of(const Storage& s) const { return by_address_[slot_of(s)]; }
  /// The placeholder of a storage; null if it died.
  Storage* live(uint32_t storage) const { return live_[storage]; }
  /// After finish(), and moved_to() if there is a new recording: gradients that the pass replaces.
  void find_replaced(std::vector<Replaced>& list) const;
  /// What the function did that a replay without it would not; null if nothing.
  const char* host_effect() const { return host_effect_; }

 private:
  /// Where a call first differs from an instruction.
  struct Mismatch {
    /// Beyond Attributes each is a smaller difference than the one before.
    enum Kind : uint8_t { None, Op, Results, Attributes, Operand, OfItsShape, Word } kind = None;
    int at = 0;  ///< The attribute word; the operand, counted on through the destinations.
    explicit operator bool() const { return kind != None; }
  };

  size_t cursor() const;
  void expect(const Recording* r, size_t cursor = 0);
  void make_slots(size_t count);
  bool matches(const Cue& e, const OpCall& c) const;
  /// What the operands bind stays bound if there is none.
  Mismatch mismatch(const Instr& e, const OpCall& c);
  static const TensorImpl* operand(const OpCall& c, int k) {
    return k < c.n_in ? c.in[k] : c.out[k - c.n_in].impl();
  }
  bool match_operand(uint32_t id, const TensorImpl* t);
  bool match_met(uint32_t id, const TensorImpl* t) const;
  void answer(const Cue& e, OpCall& c);
  void general_op(OpCall& c);
  void note_control(const Instr& e, const OpCall& c);
  void make_placeholders(const Recording& r, const Instr& e, uint32_t index, OpCall& c);
  bool survivors_match(const Recording& r) const;
  bool switch_candidate(const OpCall* c);
  void begin_recording();
  void note_difference(const OpCall* c);
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
  bool keeps_gradient(TensorImpl* old, uint32_t id, View view, const std::vector<bool>* safe);
  void forget_changes() noexcept;
  static void forget(Storage& s) noexcept {
    std::atomic_ref(s.pass).store(nullptr, std::memory_order_release);
  }
  void drop_unseen();
  bool draws_in_turn() const;

  std::vector<const Recording*> candidates_;
  const Recording* expected_ = nullptr;  // Null while recording.
  const Cue* next_ = nullptr;            // Of `expected_`; one without op while recording.
  Recording fresh_;
  std::vector<std::vector<uint32_t>> windows_;  // By storage: its values in fresh_.
  const Recording* left_ = nullptr;             // Whose ops those recorded now have been so far.
  bool resized_ = false;                        // One of them had operands of other sizes.
  Difference difference_;

  std::vector<Binding> bindings_;     // By external number.
  std::vector<uint32_t> by_address_;  // Their numbers, hashed with linear probing; kNone: free.
  std::vector<Ref<Storage>> first_seen_;
  bool watch_ = false;
  std::vector<Storage*> live_;  // By storage id; null for externals and the dead.
  std::vector<int64_t> control_;
  std::vector<std::pair<Tensor, uint32_t>> host_bytes_;  // Of host data, and its storage's number.
  RngState rng_before_;
  uint64_t drawn_before_ = 0;  // Draws of this thread.
  bool active_ = false;        // Between begin and commit or abort.

  struct Change {
    Field field;
    Ref<TensorImpl> tensor, grad;
    Ref<Node> grad_fn;
    uint8_t flags, output;
    uint32_t version;
    Ref<Storage> storage;  ///< Of Version, which is its field: no tensor then.
  };
  std::vector<Change> changes_;
  std::vector<std::pair<Ref<ControlCell>, double>> cells_;
  AddressSet leaves_;   // Whose gradients have changed,
  AddressSet met_;      // and gradients that others hold, too: only one met again is looked for.
  AddressSet flagged_;  // Of which is known whether they required grad before.
  std::vector<Ref<Node>> used_nodes_;
  Effects effects_;  // Without bindings and results.
  bool played_ = false;
  const char* host_effect_ = nullptr;
};

}  // namespace brrr::graph
