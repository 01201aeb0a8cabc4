#pragma once
// Copies between host memory and the device through a ring of pinned slots, so that a copy to the
// device returns as soon as the bytes have left the caller's memory.

#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "backends/cuda/device.h"
#include "backends/cuda/support.h"

namespace brrr {

struct HostCopy {
  char* pinned;  ///< The bytes, then the note of faults.
  size_t bytes;
  cuda::Event* done;
};

}  // namespace brrr

namespace brrr::cuda {

class Staging {
 public:
  explicit Staging(OpenDevice& d) : device_(d) {}
  /// The device's note of an index that was out of range: see kSupportText.
  char* fault();
  /// A few bytes to the host, to be read when somebody asks: see GraphBackend. Null: no memory.
  HostCopy* copy_out(const void* from, size_t bytes);
  void read(HostCopy& c, void* to, size_t offset, size_t bytes);
  void drop(HostCopy* c) noexcept;
  /// Queued; `from` may be changed at once.
  void to_device(void* to, const void* from, size_t bytes);
  /// The same of several pieces, as one copy: see GraphBackend.
  void to_device(void* to, const HostPart* parts, size_t n);
  /// See GraphBackend.
  uint32_t site(const std::string& path);
  /// Waits for all that is queued before it, and for nothing else. Throws if that has noted a
  /// fault, which is forgotten then.
  void to_host(void* to, const void* from, size_t bytes);

 private:
  /// Pinned memory that copies to the device are read from, one behind the other.
  struct Slot {
    char* memory = nullptr;
    Event* event = nullptr;
    size_t used = 0;
    bool left = false;  ///< Copies may still be reading it; `event` comes after the last of them.
  };
  char* room(size_t bytes);
  char* pinned(size_t bytes);
  char* fault_locked();
  void fetch(char* pinned, const void* from, size_t bytes);
  void fetch_now(const void* from, size_t bytes);
  void check_fault(const char* note);
  [[noreturn]] void raise(long set, long op, long value, long limit) const;
  bool more_copies();

  static constexpr size_t kSlotBytes = size_t{4} << 20;
  static constexpr int kSlots = 4;
  static constexpr size_t kNear = 4096;  ///< Bytes that go to the host together with the note.
  OpenDevice& device_;
  std::mutex mutex_;
  Slot slots_[kSlots];
  int at_ = 0;             ///< The slot that is being filled.
  char* down_ = nullptr;   ///< What copies to the host go through.
  Event* read_ = nullptr;  ///< Comes after the last of those.
  char* fault_ = nullptr;  ///< The note; kNear bytes before it are for what goes with it.
  std::vector<std::unique_ptr<HostCopy>> copies_;
  std::vector<HostCopy*> idle_;  ///< Of those, what nobody waits for.
  long serial_ = 0;              ///< Of the note of faults.
  Fault later_{};                ///< A fault that came after the one told of last.
  std::vector<std::string> sites_;
};

/// The device's own. Never destroyed.
Staging& staging();

}  // namespace brrr::cuda
