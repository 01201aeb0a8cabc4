// What exchanges between processes need of this device: a second stream, pinned host memory, and
// messages between GPUs through the module brrr_nccl.
#include <map>
#include <mutex>

#include "backends/cuda/backend.h"
#include "backends/cuda/device.h"
#include "backends/module_path.h"
#include "backends/nccl/collective.h"
#include "core/check.h"
#include "core/device_link.h"

namespace brrr {

// Two events: one recorded in a capture has no meaning outside of it.
struct DevicePoint {
  cuda::Event *run = nullptr, *captured = nullptr;
  cuda::Event* now() const { return cuda::OpenDevice::capturing ? captured : run; }
};

namespace device_link {

using namespace cuda;

namespace {

struct Link {
  std::mutex mutex;
  ObjectCache<DevicePoint> points;
  std::multimap<size_t, char*> pinned;   // Free blocks by size.
  std::map<char*, size_t> pinned_bytes;  // The sizes of all blocks.
  const nccl::Boundary* nccl = nullptr;
  nccl::Communicator* communicator = nullptr;
  DevicePoint fork;
};

void make_events(DevicePoint& p) {
  const Driver& d = *device().driver;
  check(d.make_event(&p.run), "event");
  check(d.make_event(&p.captured), "event");
}

Link& link() {
  static Link& l = *[] {
    OpenDevice& d = device();
    auto made = std::make_unique<Link>();
    check(d.driver->make_stream(&d.compute_beside), "no stream");
    check(d.driver->make_stream(&d.capture_beside), "no stream");
    make_events(made->fork);
    reserve_beside();
    return made.release();
  }();
  return l;
}

}  // namespace

// --- the second stream ---------------------------------------------------------------------------

void beside(const Point& end, const std::function<void()>& work) {
  Link& l = link();
  const OpenDevice& d = device();
  BRRR_CHECK(!OpenDevice::beside, "cuda: this thread already queues on the second stream");
  std::unique_lock lock(l.mutex);  // All threads share the fork event.
  check(d.driver->record(l.fork.now(), d.stream()), "event");
  const Held queue(OpenDevice::beside, true);
  check(d.driver->await(d.stream(), l.fork.now()), "event");
  lock.unlock();
  work();
  check(d.driver->record(end.get()->now(), d.stream()), "event");
}

Point::Point() : point_(link().points.take()) {
  if (point_) return;
  auto p = std::make_unique<DevicePoint>();
  make_events(*p);
  point_ = p.release();
}
Point::~Point() { link().points.give(point_); }

void await(DevicePoint* p) { check(device().driver->await(device().stream(), p->now()), "event"); }
bool reached(DevicePoint* p) {
  bool yes = false;
  check(device().driver->reached(p->run, &yes), "exchange");
  return yes;
}

uint64_t capture() { return OpenDevice::capturing; }

// --- pinned memory -------------------------------------------------------------------------------

char* take_pinned(size_t bytes) {
  Link& l = link();
  const std::lock_guard lock(l.mutex);
  const auto found = l.pinned.lower_bound(bytes);
  if (found != l.pinned.end() && found->first / 2 <= bytes) {
    char* const p = found->second;
    l.pinned.erase(found);
    return p;
  }
  void* p = nullptr;
  check(device().driver->allocate_pinned(&p, bytes), "pinned memory");
  BRRR_CHECK(p, "cuda: no pinned host memory left for an exchange of {} bytes", bytes);
  l.pinned_bytes[static_cast<char*>(p)] = bytes;
  return static_cast<char*>(p);
}

void give_pinned(char* p) noexcept {
  Link& l = link();
  const std::lock_guard lock(l.mutex);
  l.pinned.emplace(l.pinned_bytes.at(p), p);
}

void to_pinned(char* to, const void* from, size_t bytes) {
  queue_copy(to, from, bytes, Way::ToHost, device().stream());
}
void from_pinned(void* to, const char* from, size_t bytes) {
  queue_copy(to, from, bytes, Way::ToDevice, device().stream());
}

// --- messages ------------------------------------------------------------------------------------

bool messages(std::string& why) {
  Link& l = link();
  const std::lock_guard lock(l.mutex);
  if (!l.nccl) {
    l.nccl = static_cast<const nccl::Boundary*>(open_boundary(
        "libbrrr_nccl.so", "BRRR_NCCL_MODULE", "brrr_nccl_boundary", nccl::kAbi, why));
  }
  return l.nccl;
}

std::string identity() {
  const Properties& p = device().properties;
  return {p.uuid, sizeof p.uuid};
}

std::string make_id() {
  std::string id(nccl::kIdBytes, '\0');
  check(link().nccl->make_id(id.data()), "an id between GPUs");
  return id;
}

void join(const std::string& id, int rank, int ranks) {
  Link& l = link();
  check(l.nccl->join(id.data(), rank, ranks, &l.communicator), "joining between GPUs");
}

// During a capture messages are captured like any other work on the stream.
void send(const void* at, size_t bytes, int peer) {
  const Link& l = link();
  check(l.nccl->send(l.communicator, at, bytes, peer, device().stream()), "sending between GPUs");
}
void receive(void* at, size_t bytes, int peer) {
  const Link& l = link();
  check(l.nccl->receive(l.communicator, at, bytes, peer, device().stream()),
        "receiving between GPUs");
}

void begin_group() { check(link().nccl->begin_group(), "a group between GPUs"); }
void end_group() { check(link().nccl->end_group(), "a group between GPUs"); }

std::string trouble() {
  const Link& l = link();
  const Failure failure = l.communicator ? l.nccl->state(l.communicator) : nullptr;
  return failure ? failure : "";
}

}  // namespace device_link

}  // namespace brrr
