#include "backends/cuda/staging.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "backends/cuda/pool.h"
#include "core/check.h"
#include "core/op.h"

namespace brrr::cuda {

static constexpr size_t kCopyBytes = 256;
static_assert(kEarlyBytes + sizeof(Fault) <= kCopyBytes);

Staging& staging() {
  static Staging& s = *new Staging(device());
  return s;
}

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
  const HostPart whole{from, 0, bytes};
  to_device(to, &whole, 1);
}

void Staging::to_device(void* to, const HostPart* parts, size_t n) {
  const std::lock_guard lock(mutex_);
  const size_t bytes = n ? parts[n - 1].at + parts[n - 1].bytes : 0;
  for (size_t at = 0; at < bytes; at += kSlotBytes) {
    const size_t end = std::min(at + kSlotBytes, bytes);
    char* through = room(end - at);
    for (const HostPart* p = parts; p != parts + n; ++p) {
      const size_t first = std::max(at, p->at), last = std::min(end, p->at + p->bytes);
      if (first >= last) continue;
      std::memcpy(through + (first - at), static_cast<const char*>(p->from) + (first - p->at),
                  last - first);
    }
    queue_copy(static_cast<char*>(to) + at, through, end - at, Way::ToDevice, device_.compute);
  }
}

// To down_, with the note of faults as it is then; copies of it that are on their way are older.
void Staging::fetch_now(const void* from, size_t bytes) {
  if (!down_) down_ = pinned(kSlotBytes + sizeof(Fault));
  if (!read_) check(device_.driver->make_event(&read_), "event");
  fetch(down_, from, bytes);
  check(device_.driver->record(read_, device_.compute), "event");
  wait_for(read_, "copy to the host");
}

void Staging::to_host(void* to, const void* from, size_t bytes) {
  const std::lock_guard lock(mutex_);
  size_t at = 0;
  do {
    const size_t n = std::min(kSlotBytes, bytes - at);
    fetch_now(static_cast<const char*>(from) + at, n);
    check_fault(down_ + n);
    if (n) std::memcpy(static_cast<char*>(to) + at, down_, n);
    at += n;
  } while (at < bytes);
}

// The bytes and, behind them, the note of faults. A few bytes are first put in front of the note on
// the device: one copy brings both.
void Staging::fetch(char* pinned, const void* from, size_t bytes) {
  char* const note = fault_locked();
  const size_t near = bytes <= kNear ? bytes : 0;
  Stream* const stream = device_.compute;
  queue_copy(note - near, from, near, Way::OnDevice, stream);
  queue_copy(pinned, from, bytes - near, Way::ToHost, stream);
  queue_copy(pinned + (bytes - near), note - near, near + sizeof(Fault), Way::ToHost, stream);
}

// --- early copies --------------------------------------------------------------------------------

// One piece of pinned memory serves many. Whoever holds so many results reads them the slow way.
bool Staging::more_copies() {
  constexpr size_t kMany = 64, kMost = 4096;
  if (copies_.size() >= kMost) return false;
  char* at = pinned(kMany * kCopyBytes);
  for (size_t k = 0; k < kMany; ++k) {
    auto c = std::make_unique<HostCopy>(HostCopy{at, 0, nullptr});
    at += kCopyBytes;
    check(device_.driver->make_event(&c->done), "event");
    idle_.push_back(copies_.emplace_back(std::move(c)).get());
  }
  return true;
}

HostCopy* Staging::copy_out(const void* from, size_t bytes) {
  const std::lock_guard lock(mutex_);
  // What is to be copied has been made: an error here would say that it has not.
  try {
    if (idle_.empty() && !more_copies()) return nullptr;
    HostCopy* c = idle_.back();
    c->bytes = bytes;
    fetch(c->pinned, from, bytes);
    check(device_.driver->record(c->done, device_.compute), "event");
    idle_.pop_back();
    return c;
  } catch (const Error&) {
    return nullptr;  // Whoever reads it asks again, and is told.
  }
}

void Staging::read(HostCopy& c, void* to, size_t offset, size_t bytes) {
  wait_for(c.done, "copy to the host");  // Others may queue meanwhile.
  const std::lock_guard lock(mutex_);
  check_fault(c.pinned + c.bytes);
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
  const bool there = pool().make_room([&] {
    check(device_.driver->allocate(&p, kNear + sizeof(Fault)), "allocate");
    return p != nullptr;
  });
  BRRR_CHECK(there, "cuda: no device memory left for {} bytes", kNear + sizeof(Fault));
  char* const note = static_cast<char*>(p) + kNear;
  check(device_.driver->fill(note, 0, sizeof(Fault), device_.compute), "fill");
  return fault_ = note;
}

char* Staging::fault() {
  const std::lock_guard lock(mutex_);
  return fault_locked();
}

uint32_t Staging::site(const std::string& path) {
  const std::lock_guard lock(mutex_);
  const auto it = std::find(sites_.begin(), sites_.end(), path);
  const auto number = static_cast<uint32_t>(it - sites_.begin()) + 1;
  if (it == sites_.end()) sites_.push_back(path);
  return number;
}

void Staging::raise(long set, long op, long value, long limit) const {
  const char* name = registry().at(static_cast<size_t>(op & 0xffffffff))->name;
  std::string found = "found by the device after the call";
  if (const auto site = static_cast<size_t>(op >> 32)) {
    const std::string& path = sites_.at(site - 1);
    found += fmt::format(", in a replay{}{}", path.empty() ? "" : ": ", path);
  }
  BRRR_CHECK(set == 1,
             "{}: row {} has values that it cannot take ({}; on the CPU the call says which)", name,
             value, found);
  fail("{}: index {} is out of range: the dim has size {}, so indices are in [0, {}) ({})", name,
       value, limit, limit, found);
}

// Each fault is told of once, by the first read that finds it.
void Staging::check_fault(const char* note) {
  Fault f;
  std::memcpy(&f, note, sizeof f);
  if (later_.set) {
    const Fault l = std::exchange(later_, Fault{});
    raise(l.last_set, l.last_op, l.last_value, l.last_limit);
  }
  if (!f.set || f.serial != serial_) return;
  fetch_now(nullptr, 0);
  Fault now;
  std::memcpy(&now, down_, sizeof now);
  Fault clear{};
  clear.serial = ++serial_;
  char* through = room(sizeof clear);
  std::memcpy(through, &clear, sizeof clear);
  queue_copy(fault_, through, sizeof clear, Way::ToDevice, device_.compute);
  if (now.count > f.count) later_ = now;
  raise(f.set, f.op, f.value, f.limit);
}

}  // namespace brrr::cuda
