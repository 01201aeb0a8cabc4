#pragma once
// Collectives of tensors on GPUs. With a module for it (NCCL) GPUs send to each other, on a stream
// beside the computation, which a capture records like any work; else bytes go through pinned host
// memory. Either way our own kernels add in rank order: the bits are those of tensors on the CPU.

#include "core/device_link.h"
#include "core/tensor.h"
#include "ops/kinds/exchange.h"

namespace brrr::dist {

/// Whether the GPUs of this run send to each other. The first call decides and connects them: every
/// rank makes it at the same point, outside a capture. Throws brrr::Error if ranks share a GPU.
bool gpus_linked();

/// With BRRR_DIST_CHECK: throws unless all ranks make this call. Replays repeat a compared call.
void compare_calls(const std::string& what);

/// In host memory: the number of exchanges that linked GPUs have completed.
long* exchanges_done();

/// Throws if a capture records what the calling thread queues.
void refuse_capture(const std::string& what);

/// Each sum is rounded as add_() rounds it. from[0] carries partial sums between launches.
void add_on_device(const SumPlan::Addition& sum, DType dtype);

/// A sum over the ranks, or a half of it, that runs beside the computation. It may be repeated, in
/// the memory that it allocated the first time.
class DeviceSum : NotCopied {
 public:
  ~DeviceSum();
  /// Takes rows as plan_sum() does, on the GPU. `job` says which halves run, and carries the rows
  /// where GPUs are not linked.
  void set_rows(const std::vector<Row>& rows, int passes, const std::shared_ptr<Job>& job);
  void begin();
  /// Work queued from here on finds the sum in the last row.
  void end();
  /// Work queued from here on may use the rows' memory.
  void wait_until_unused() noexcept;

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
  SumPlan plan_;  // For linked GPUs.
  // Buffers for the others' shares of this rank's shard: the current one last, after former ones.
  std::vector<Tensor> shares_;
  char* pinned_ = nullptr;  // All rows, packed.
  size_t pinned_bytes_ = 0;
  std::vector<Copy> to_host_, back_;
};

}  // namespace brrr::dist
