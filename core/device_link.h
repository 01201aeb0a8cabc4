#pragma once
// What a GPU offers for exchanges between processes: a second queue, pinned host memory, and
// messages from GPU to GPU.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "core/moved.h"

namespace brrr {

/// A point in the second queue.
struct DevicePoint;

/// For the GPU that backend(kCUDA) stands for. Defined by backends/cuda.
namespace device_link {
// --- the queue -------------------------------------------------------------------------------
void await(DevicePoint* p);  ///< What this thread queues from here on runs after the point.
bool reached(DevicePoint* p);
/// A point with an owner.
class Point : NotCopied {
 public:
  Point();
  ~Point();
  DevicePoint* get() const { return point_; }

 private:
  DevicePoint* point_;
};
/// What `work` queues goes to the second queue, after all that this thread has queued until now;
/// `end` is recorded after it.
void beside(const Point& end, const std::function<void()>& work);
/// The number of the capture that this thread's work goes to; 0: none, it runs.
uint64_t capture();
/// For how long the thread that last began to wait for the device has been waiting; 0: none is.
double waited_s();
// --- pinned host memory ----------------------------------------------------------------------
char* take_pinned(size_t bytes);
void give_pinned(char* p) noexcept;
void to_pinned(char* to, const void* from, size_t bytes);    ///< Queued.
void from_pinned(void* to, const char* from, size_t bytes);  ///< Queued.
// --- messages --------------------------------------------------------------------------------
/// Whether a module for them is available; if not, `why` says why.
bool messages(std::string& why);
/// Identifies the GPU; the same in every process that uses it.
std::string identity();
/// An id for all ranks, which then call join() at the same time.
std::string make_id();
void join(const std::string& id, int rank, int ranks);
/// Messages of a group progress together; they are queued at its end. Sender and receiver use the
/// same bytes in the same order.
void begin_group();
void send(const void* at, size_t bytes, int peer);
void receive(void* at, size_t bytes, int peer);
void end_group();
/// What has failed in messages meanwhile, on this side or a peer's. Any thread may call it.
std::string trouble();
}  // namespace device_link

}  // namespace brrr
