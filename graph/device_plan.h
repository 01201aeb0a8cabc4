#pragma once
// Replays on a GPU: all launches of a step, captured once, are one launch.
//
// Memory is at fixed addresses: temporaries in the device's one arena, results in slots of the
// plan's own, and in a block that one copy refills before each replay the numbers that vary (the
// control words) and what the step takes from host memory. What a user still holds of the last
// replay's results is copied away before the next one overwrites it. An input that lies elsewhere
// than when the step was captured is copied into a slot before, and back afterwards if the step
// writes it; the first time that happens to an input the step is captured anew, with the slot.

#include "core/address_set.h"
#include "graph/plan.h"
#include "core/device_kernel.h"
#include "ops/program/cuda_rows.h"

namespace brrr::graph {

inline constexpr int64_t kVectorBytes = 16;  ///< Of a kernel's widest access, which is aligned.
/// Memory of the device; throws brrr::Error when there is none.
Ref<Storage> device_memory(size_t bytes);
/// Bytes of an element.
inline int64_t item(const Value& v) { return static_cast<int64_t>(itemsize(v.dtype)); }

class DevicePlan final : public Plan {
 public:
  DevicePlan(const Recording& r, const StepOptions& options);
  ~DevicePlan() override;

  void run(const Replay& now) override;
  Device device() const override { return kCUDA; }
  bool holds(size_t survivor, const Storage* s) const override;
  void report_faults() const override;

 private:
  /// A generated kernel; of several parts each has blocks from its first one on.
  struct Kernel {
    std::string name;
    int threads;
    int64_t blocks = 0;
    std::vector<int64_t> first = {};
    void* fn = nullptr;
  };
  /// Parts of a group with one text, and what its kernels take of each: words.
  struct Batch {
    std::vector<Kernel> kernels;
    std::vector<int64_t> words;
    int64_t parts = 0;
    bool table = false;  ///< Kernels find the words in the block; else they are handed.
    size_t at = 0;       ///< Where in the block.
    void add_blocks(size_t kernel, std::string name, int64_t blocks, int threads);
    std::vector<std::pair<size_t, uint32_t>> addresses;  ///< Word, value id.
    std::vector<std::pair<size_t, uint32_t>> controls;   ///< Word, control word.
    std::vector<std::pair<size_t, int64_t>> scratch;     ///< Word, place in the group's memory.
  };
  /// What a group is: batches, or one library call that queues kernels of its own.
  struct Launch {
    std::unique_ptr<LibraryCall> call;
    std::vector<Batch> batches;
    int host_data = -1;  ///< Of its group, into host_data_; nothing is launched then.
    uint32_t site = 0;   ///< Of the call, for notes of faults.
  };
  /// Host data of the step.
  struct HostData {
    uint32_t control;  ///< The control word with the address.
    uint32_t storage;
    HostPart part;  ///< Where in the block.
  };
  /// What the step touches of an external storage, in bytes from where the binding begins.
  struct External {
    int64_t low = 0, high = 0;
    bool written = false;
    bool in_slot = false;      ///< The captured kernels use the slot.
    char* captured = nullptr;  ///< Where the binding began when the step was captured.
    Ref<Storage> slot;
    char* now = nullptr;  ///< Where it begins in this call.
    size_t bytes() const { return static_cast<size_t>(high - low); }
    /// Where the bytes lie in the slot: such that the binding's own beginning, which may be outside
    /// it, is aligned, as kernels expect of it.
    char* slot_begin() const { return static_cast<char*>(slot->data) + ((low % 16) + 16) % 16; }
  };

  void find_externals();
  void generate_kernels();
  void build_kernels();
  void add_host_data(const Instr& i);
  void add_part(const Part& part, bool table, Launch& l);
  template <class Walk>
  void add_kernels(const GroupProgram& g, const Part& part, const Walk& walk, bool table,
                   Launch& l);
  Batch& batch_of(Launch& l, const std::string& name, bool table);
  void add_word(const GroupProgram& g, const Part& part, program::Word w, int64_t value, Batch& b);
  void place_tables();
  int64_t fault_op_of(const Part& part) const;
  void resolve(Batch& b, size_t group);
  void run_kernels(const Batch& b);
  void allocate_fixed();
  void keep_results(const Replay& now);
  void bind(const std::vector<Binding>& bindings);
  void upload(const int64_t* control);
  void resolve();
  void launch(Launch& l);
  void launch_all();
  void capture();
  void note_spoilt(const Error& e);
  void launch_graph();
  void launch_directly(const std::vector<Binding>& bindings);
  void hand_out(Storage* const* survivors);

  const Backend& device_;
  DeviceGraph* graph_ = nullptr;
  std::vector<Launch> launches_;  // By group.
  std::vector<int64_t> scratch_;  // By group: bytes that its kernels take.
  std::vector<External> externals_;
  std::vector<HostData> host_data_;
  std::vector<HostPart> parts_;       // Of the block: the control words, host data, tables.
  std::vector<Ref<Storage>> slots_;   // By survivor.
  std::vector<Ref<Storage>> handed_;  // By survivor: what the last replay gave out.
  AddressSet replaced_;               // Storages of gradients that a call replaces.
  Ref<Storage> block_memory_;
  char* block_ = nullptr;  // The control words on the device, host data, tables.
  size_t block_bytes_ = 0;
  int spoilt_ = 0;         // Captures that failed.
  uint64_t retry_at_ = 0;  // The direct replay before which a capture is tried again.
  const bool wait_;        // After each replay.
};

}  // namespace brrr::graph
