#include "backends/cuda/staging.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "backends/cuda/support.h"
#include "core/check.h"
#include "core/op.h"

namespace brrr {

struct HostCopy {
  char* pinned;  // The bytes, then the note of faults.
  cuda::Event* done;
};

}  // namespace brrr

namespace brrr::cuda {

char* Staging::pinned(size_t bytes) {
  void* p = nullptr;
  check(device_.driver->allocate_pinned(&p, bytes), "pinned memory");
  BRRR_CHECK(p, "cuda: no pinned host memory left for copies ({} bytes)", bytes);
  return static_cast<char*>(p);
}

// The host runs ahead of the device by as many copies as fit into all slots but one.
char* Staging::room(size_t bytes) {
  const Driver& driver = *device_.driver;
  if (slots_[at_].used + bytes > kSlotBytes) {
    check(driver.record(slots_[at_].event, device_.compute), "event");
    slots_[at_].left = true;
    at_ = (at_ + 1) % kSlots;
    Slot& next = slots_[at_];
    if (next.left) check(driver.wait(next.event), "copy");
    next.left = false;
    next.used = 0;
  }
  Slot& s = slots_[at_];
  if (!s.memory) s.memory = pinned(kSlotBytes);
  if (!s.event) check(driver.make_event(&s.event), "event");
  char* p = s.memory + s.used;
  s.used += (bytes + 63) / 64 * 64;
  return p;
}

void Staging::to_device(void* to, const void* from, size_t bytes) {
  const std::lock_guard lock(mutex_);
  for (size_t at = 0; at < bytes; at += kSlotBytes) {
    const size_t n = std::min(kSlotBytes, bytes - at);
    char* through = room(n);
    std::memcpy(through, static_cast<const char*>(from) + at, n);
    check(device_.driver->copy(static_cast<char*>(to) + at, through, n, Way::ToDevice,
                               device_.compute),
          "copy to the device");
  }
}

void Staging::to_host(void* to, const void* from, size_t bytes) {
  const std::lock_guard lock(mutex_);
  const Driver& driver = *device_.driver;
  if (!down_) down_ = pinned(kSlotBytes + sizeof(Fault));
  if (!read_) check(driver.make_event(&read_), "event");
  size_t at = 0;
  do {
    const size_t n = std::min(kSlotBytes, bytes - at);
    if (n) {
      check(
          driver.copy(down_, static_cast<const char*>(from) + at, n, Way::ToHost, device_.compute),
          "copy to the host");
    }
    check(driver.copy(down_ + kSlotBytes, fault_locked(), sizeof(Fault), Way::ToHost,
                      device_.compute),
          "copy to the host");
    check(driver.record(read_, device_.compute), "event");
    device_.counters.synchronisations.fetch_add(1, std::memory_order_relaxed);
    check(driver.wait(read_), "copy to the host");
    check_fault(down_ + kSlotBytes);
    if (n) std::memcpy(static_cast<char*>(to) + at, down_, n);
    at += n;
  } while (at < bytes);
}

// --- early copies --------------------------------------------------------------------------------

HostCopy* Staging::copy_out(const void* from, size_t bytes) {
  const std::lock_guard lock(mutex_);
  const Driver& driver = *device_.driver;
  if (idle_.empty()) {
    auto c = std::make_unique<HostCopy>(HostCopy{pinned(kEarlyBytes + sizeof(Fault)), nullptr});
    check(driver.make_event(&c->done), "event");
    idle_.push_back(c.release());
  }
  HostCopy* c = idle_.back();
  check(driver.copy(c->pinned, from, bytes, Way::ToHost, device_.compute), "copy to the host");
  check(driver.copy(c->pinned + kEarlyBytes, fault_locked(), sizeof(Fault), Way::ToHost,
                    device_.compute),
        "copy to the host");
  check(driver.record(c->done, device_.compute), "event");
  idle_.pop_back();
  return c;
}

void Staging::read(HostCopy& c, void* to, size_t offset, size_t bytes) {
  const std::lock_guard lock(mutex_);
  device_.counters.synchronisations.fetch_add(1, std::memory_order_relaxed);
  check(device_.driver->wait(c.done), "copy to the host");
  check_fault(c.pinned + kEarlyBytes);
  std::memcpy(to, c.pinned + offset, bytes);
}

void Staging::drop(HostCopy* c) noexcept {
  const std::lock_guard lock(mutex_);
  idle_.push_back(c);
}

// --- faults --------------------------------------------------------------------------------------

char* Staging::fault_locked() {
  if (fault_) return fault_;
  void* p = nullptr;
  check(device_.driver->allocate(&p, sizeof(Fault)), "allocate");
  BRRR_CHECK(p, "cuda: no device memory left for {} bytes", sizeof(Fault));
  check(device_.driver->fill(p, 0, sizeof(Fault), device_.compute), "fill");
  return fault_ = static_cast<char*>(p);
}

char* Staging::fault() {
  const std::lock_guard lock(mutex_);
  return fault_locked();
}

void Staging::check_fault(const char* note) {
  Fault f;
  std::memcpy(&f, note, sizeof f);
  if (!f.set) return;
  check(device_.driver->fill(fault_, 0, sizeof f, device_.compute), "fill");
  const char* op = registry().at(static_cast<size_t>(f.op))->name;
  BRRR_CHECK(f.set == 1,
             "{}: row {} has values that it cannot take (found by the device after the call; on "
             "the CPU the call says which)",
             op, f.value);
  fail(
      "{}: index {} is out of range: the dim has size {}, so indices are in [0, {}) (found by the "
      "device after the call)",
      op, f.value, f.limit, f.limit);
}

}  // namespace brrr::cuda
