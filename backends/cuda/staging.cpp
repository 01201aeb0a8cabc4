// Copies between host memory and the device through a ring of pinned slots, so that a copy to the
// device returns as soon as the caller's bytes are in a slot; and the faults that kernels record.
#include <algorithm>
#include <cstring>
#include <mutex>
#include <utility>

#include "backends/cuda/backend.h"
#include "backends/cuda/device.h"
#include "backends/cuda/pool.h"
#include "backends/cuda/support.h"
#include "core/check.h"
#include "core/op.h"

namespace brrr {

struct HostCopy {
  char* pinned;  ///< The bytes, then a copy of the fault record.
  size_t bytes;
  cuda::Event* done;
};

namespace cuda {

namespace {

constexpr size_t kSlotBytes = size_t{4} << 20, kSlots = 4;
constexpr size_t kNear = 4096;  // Most bytes that one transfer takes along with the fault record.
constexpr size_t kCopyBytes = 256;
static_assert(kEarlyBytes + sizeof(Fault) <= kCopyBytes);

char* pinned(size_t bytes) {
  void* p = nullptr;
  check(device().driver->allocate_pinned(&p, bytes), "pinned memory");
  BRRR_CHECK(p, "cuda: no pinned host memory left for copies ({} bytes)", bytes);
  return static_cast<char*>(p);
}

// Pinned memory from which copies to the device read, filled from start to end.
struct Slot {
  char* memory = nullptr;
  Event* event = nullptr;  // Recorded after the last copy that reads the slot.
  size_t used = 0;
};

[[noreturn]] void raise(long set, long op, long value, long limit,
                        const std::vector<std::string>& sites) {
  const char* name = registry().at(static_cast<size_t>(op & 0xffffffff))->name;
  std::string found = "found by the device after the call";
  if (const auto site = static_cast<size_t>(op >> 32)) {
    const std::string& path = sites.at(site - 1);
    found += fmt::format(", in a replay{}{}", path.empty() ? "" : ": ", path);
  }
  BRRR_CHECK(set == 1, "{}: row {} has invalid values ({}; on the CPU the call says which)", name,
             value, found);
  fail("{}: index {} is out of range: the dim has size {}, so indices are in [0, {}) ({})", name,
       value, limit, limit, found);
}

// The staging state of the device.
struct Staging {
  std::mutex mutex;
  Slot slots[kSlots];
  size_t at = 0;                // The slot that is being filled.
  char* received = nullptr;     // Pinned buffer of copies to the host.
  Event* read = nullptr;        // Recorded after the last copy into `received`.
  char* record = nullptr;       // The fault record on the device, after kNear bytes of buffer.
  size_t copies = 0;            // How many HostCopy objects exist.
  std::vector<HostCopy*> idle;  // Those not in use.
  long serial = 0;              // The fault record's current serial.
  Fault later{};                // A fault recorded after the last one thrown.
  std::vector<std::string> sites;

  // Space in a slot. The host gets ahead of the device by at most the copies in all slots but one.
  char* reserve(size_t bytes) {
    const OpenDevice& d = device();
    if (slots[at].used + bytes > kSlotBytes) {
      check(d.driver->record(slots[at].event, d.compute), "event");
      at = (at + 1) % kSlots;
      Slot& next = slots[at];
      if (next.event) check(d.driver->wait(next.event), "copy");
      next.used = 0;
    }
    Slot& s = slots[at];
    if (!s.memory) s.memory = pinned(kSlotBytes);
    if (!s.event) check(d.driver->make_event(&s.event), "event");
    char* p = s.memory + s.used;
    s.used += (bytes + 63) / 64 * 64;
    return p;
  }

  char* fault() {
    if (record) return record;
    const OpenDevice& d = device();
    void* p = nullptr;
    const bool there = pool().retry_after_trim([&] {
      check(d.driver->allocate(&p, kNear + sizeof(Fault)), "allocate");
      return p != nullptr;
    });
    BRRR_CHECK(there, "cuda: no device memory left for {} bytes", kNear + sizeof(Fault));
    char* const made = static_cast<char*>(p) + kNear;
    check(d.driver->fill(made, 0, sizeof(Fault), d.compute), "fill");
    return record = made;
  }

  // Queues a copy of the bytes and, behind them, the fault record. Up to kNear bytes are first put
  // in front of the record on the device, so that one transfer brings both.
  void fetch(char* pinned, const void* from, size_t bytes) {
    char* const record = fault();
    const size_t near = bytes <= kNear ? bytes : 0;
    Stream* const stream = device().compute;
    queue_copy(record - near, from, near, Way::OnDevice, stream);
    queue_copy(pinned, from, bytes - near, Way::ToHost, stream);
    queue_copy(pinned + (bytes - near), record - near, near + sizeof(Fault), Way::ToHost, stream);
  }

  // Fetches to `received` and waits. Records that pending HostCopy objects will bring are older.
  void fetch_now(const void* from, size_t bytes) {
    const OpenDevice& d = device();
    if (!received) received = pinned(kSlotBytes + sizeof(Fault));
    if (!read) check(d.driver->make_event(&read), "event");
    fetch(received, from, bytes);
    check(d.driver->record(read, d.compute), "event");
    wait_for(read, "copy to the host");
  }

  // Adds 64 HostCopy objects in one pinned allocation; false beyond 4096: reads then copy and wait.
  bool more_copies() {
    constexpr size_t kMany = 64, kMost = 4096;
    if (copies >= kMost) return false;
    char* at = pinned(kMany * kCopyBytes);
    for (size_t k = 0; k < kMany; ++k, ++copies, at += kCopyBytes) {
      Event* done = nullptr;
      check(device().driver->make_event(&done), "event");
      idle.push_back(new HostCopy{at, 0, done});
    }
    return true;
  }

  // Throws each fault once, at the first read that finds it.
  void check_fault(const char* copy) {
    Fault f;
    std::memcpy(&f, copy, sizeof f);
    if (later.set) {
      const Fault l = std::exchange(later, Fault{});
      raise(l.last_set, l.last_op, l.last_value, l.last_limit, sites);
    }
    if (!f.set || f.serial != serial) return;
    fetch_now(nullptr, 0);
    Fault now;
    std::memcpy(&now, received, sizeof now);
    Fault clear{};
    clear.serial = ++serial;
    char* through = reserve(sizeof clear);
    std::memcpy(through, &clear, sizeof clear);
    queue_copy(record, through, sizeof clear, Way::ToDevice, device().compute);
    if (now.count > f.count) later = now;
    raise(f.set, f.op, f.value, f.limit, sites);
  }
};

// The staging state with its lock held.
struct Locked : NotCopied {
  Staging& s = process_own<Staging>();
  const std::lock_guard<std::mutex> lock{s.mutex};
  Staging* operator->() const { return &s; }
};

}  // namespace

void to_device(void* to, const void* from, size_t bytes) {
  const HostPart whole{from, 0, bytes};
  device_queue::upload(to, &whole, 1);
}

void to_host(void* to, const void* from, size_t bytes) {
  const Locked s;
  size_t at = 0;
  do {
    const size_t n = std::min(kSlotBytes, bytes - at);
    s->fetch_now(static_cast<const char*>(from) + at, n);
    s->check_fault(s->received + n);
    if (n) std::memcpy(static_cast<char*>(to) + at, s->received, n);
    at += n;
  } while (at < bytes);
}

}  // namespace cuda

namespace device_queue {

using namespace cuda;

void upload(void* to, const HostPart* parts, size_t n) {
  const Locked s;
  const size_t bytes = n ? parts[n - 1].at + parts[n - 1].bytes : 0;
  for (size_t at = 0; at < bytes; at += kSlotBytes) {
    const size_t end = std::min(at + kSlotBytes, bytes);
    char* through = s->reserve(end - at);
    for (const HostPart* p = parts; p != parts + n; ++p) {
      const size_t first = std::max(at, p->at), last = std::min(end, p->at + p->bytes);
      if (first >= last) continue;
      std::memcpy(through + (first - at), static_cast<const char*>(p->from) + (first - p->at),
                  last - first);
    }
    queue_copy(static_cast<char*>(to) + at, through, end - at, Way::ToDevice, device().compute);
  }
}

HostCopy* copy_out(const void* from, size_t bytes) {
  const Locked s;
  // Does not throw: the step that computed the bytes has succeeded.
  try {
    if (s->idle.empty() && !s->more_copies()) return nullptr;
    HostCopy* c = s->idle.back();
    c->bytes = bytes;
    s->fetch(c->pinned, from, bytes);
    check(device().driver->record(c->done, device().compute), "event");
    s->idle.pop_back();
    return c;
  } catch (const std::exception&) {
    return nullptr;  // The read then copies by itself and throws the error.
  }
}

void read(const HostCopy& c, void* to, size_t offset, size_t bytes) {
  wait_for(c.done, "copy to the host");  // Without the lock, so that other threads can queue.
  const Locked s;
  s->check_fault(c.pinned + c.bytes);
  std::memcpy(to, c.pinned + offset, bytes);
}

void drop(HostCopy* c) noexcept { Locked()->idle.push_back(c); }

uint32_t site(const std::string& path) {
  const Locked s;
  const auto it = std::find(s->sites.begin(), s->sites.end(), path);
  const auto number = static_cast<uint32_t>(it - s->sites.begin()) + 1;
  if (it == s->sites.end()) s->sites.push_back(path);
  return number;
}

}  // namespace device_queue

char* device_fault() { return cuda::Locked()->fault(); }

}  // namespace brrr
