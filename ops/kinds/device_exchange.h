#pragma once
// Collectives of tensors on GPUs. Where there is a module for it (NCCL) GPUs send to each other, in
// a queue beside the computation, which a capture notes like any work; else bytes go through pinned
// memory of the host. Sums are taken in rank order by a kernel of ours either way: the bits are
// those of tensors on the CPU.

#include "core/device_link.h"
#include "core/tensor.h"
#include "ops/kinds/exchange.h"

namespace brrr::dist {

/// Whether the GPUs of this run send to each other. The first call decides, and joins them: every
/// rank makes it at the same point, outside of a capture. Throws brrr::Error if they share one.
bool gpus_linked();

/// With BRRR_DIST_CHECK: throws unless all ranks make this call. Replays repeat what was compared.
void compare_calls(const std::string& what);

/// In memory of the host: one more for each exchange that linked GPUs have done.
long* exchanges_done();

/// Throws if what the calling thread queues is noted by a capture.
void refuse_capture(const std::string& what);

/// Each sum is rounded as add_() rounds it. What one kernel has taken is kept in from[0] for the
/// next.
void add_on_device(const SumPlan::Addition& sum, DType dtype);

/// A sum over the ranks, or a half of it, that goes on beside the computation. It may be had many
/// times, in what it has allocated the first time.
class DeviceSum : NotCopied {
 public:
  ~DeviceSum();
  /// Of rows as plan_sum() takes them, on the GPU. `job` says what of it takes place, and carries
  /// the rows where GPUs are not linked.
  void set_rows(const std::vector<Row>& rows, int passes, const std::shared_ptr<Job>& job);
  void begin();
  /// What is queued from here on finds the sum in the last row.
  void end();
  /// What is queued from here on may use the rows' memory.
  void let_go() noexcept;

 private:
  struct Copy {
    char *there, *pinned;
    size_t bytes;
  };
  void place_on_host(const std::vector<Row>& rows, int passes);

  device_link::Point done_;
  bool linked_ = false;
  DType dtype_ = kFloat32;
  std::shared_ptr<Job> job_;
  SumPlan plan_;  // Of linked GPUs.
  // Of this rank's shard, from the others: the last one, and former ones.
  std::vector<Tensor> shares_;
  char* pinned_ = nullptr;  // All rows, one after the other.
  size_t pinned_bytes_ = 0;
  std::vector<Copy> to_host_, back_;
};

}  // namespace brrr::dist
