#pragma once
// What a GPU offers to exchanges between processes: a queue beside its other work, memory of the
// host that it copies from and to by itself, and messages from GPU to GPU.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "core/moved.h"

namespace brrr {

/// A point in the queue beside.
struct DevicePoint;

/// Of the GPU that backend(kCUDA) stands for. Defined by backends/cuda.
namespace device_link {
// --- the queue -------------------------------------------------------------------------------
void await(DevicePoint* p);  ///< What this thread queues from here on comes after the point.
bool reached(DevicePoint* p);
/// One that is its holder's.
class Point : NotCopied {
 public:
  Point();
  ~Point();
  DevicePoint* get() const { return point_; }

 private:
  DevicePoint* point_;
};
/// What `work` queues goes to a queue beside, behind all that this thread has queued until now, up
/// to a point behind it.
void beside(const Point& end, const std::function<void()>& work);
/// The number of the capture that notes what this thread queues; 0: it runs.
uint64_t capture();
/// For how long the thread that began to wait for the device last has been waiting; 0: none is.
double waited_s();
// --- memory of the host ----------------------------------------------------------------------
char* take_pinned(size_t bytes);
void give_pinned(char* p) noexcept;
void to_pinned(char* to, const void* from, size_t bytes);    ///< Queued.
void from_pinned(void* to, const char* from, size_t bytes);  ///< Queued.
// --- messages --------------------------------------------------------------------------------
/// Whether there is a module for them; if not, why.
bool messages(std::string& why);
/// Of the GPU, the same in every process that uses it.
std::string identity();
/// One for all ranks; each then joins at the same time.
std::string make_id();
void join(const std::string& id, int rank, int ranks);
/// Messages of a group make progress together; they are queued at its end. Both sides have the
/// same bytes in the same order.
void begin_group();
void send(const void* at, size_t bytes, int peer);
void receive(void* at, size_t bytes, int peer);
void end_group();
/// What has gone wrong with them meanwhile, on its own or a peer's side. Any thread may ask.
std::string trouble();
}  // namespace device_link

}  // namespace brrr
