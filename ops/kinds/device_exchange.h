#pragma once
// Collectives of tensors on GPUs. Where there is a module for it (NCCL) GPUs send to each other, in
// a queue beside the computation, which a capture notes like any work; else bytes go through pinned
// memory of the host. Sums are taken in rank order by a kernel of ours either way: the bits are
// those of tensors on the CPU.

#include <functional>

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

/// A point of the queue beside.
class Point : NotCopied {
 public:
  Point() : point_(device_link::make_point()) {}
  ~Point() { device_link::drop_point(point_); }
  DevicePoint* get() const { return point_; }

 private:
  DevicePoint* point_;
};

/// Does `work` in the queue beside, up to a point behind it.
void beside(const Point& end, const std::function<void()>& work);

/// to = from[0] + from[1] + .., n elements of each, as add_() rounds them in that order. The sum of
/// those that one kernel takes is kept in `partial`, which may be from[0], unless `to` is another.
void add_shares(char* to, char* partial, const std::vector<const char*>& from, int64_t n,
                DType dtype);

/// A sum over the ranks, or a half of it, that goes on beside the computation. It may be had many
/// times, in what it has allocated the first time.
class DeviceSum : NotCopied {
 public:
  ~DeviceSum();
  /// Of rows as AllReduceJob::set_rows() takes them, on the GPU. `job` says what of it takes place,
  /// and carries the rows where GPUs are not linked.
  void set_rows(std::vector<Row> rows, int passes, const std::shared_ptr<AllReduceJob>& job);
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
  void place_on_host();

  Point done_;
  bool linked_ = false;
  std::vector<Row> rows_;
  int passes_ = 1;
  std::shared_ptr<AllReduceJob> job_;
  Tensor shares_;           // Of this rank's shard, from the others.
  char* pinned_ = nullptr;  // All rows, one after the other.
  size_t pinned_bytes_ = 0;
  std::vector<Copy> copies_;
  size_t copies_back_ = 0;  // The last ones: of the last row.
};

/// The sum over ranks of `values`, in place. These are for linked GPUs, and dense memory.
void device_all_reduce(const std::string& what, Span values, DType dtype);
/// See all_gather_job() and the others.
void device_all_gather(const std::string& what, Span mine, char* all, DType dtype);
void device_reduce_scatter(const std::string& what, Span mine, char* all, DType dtype);
void device_broadcast(const std::string& what, Span values, DType dtype, int root);

}  // namespace brrr::dist
