#pragma once
// Reference counting and the per-thread free lists behind tensors, storages and tape nodes.

#include <atomic>
#include <cstdint>
#include <new>
#include <utility>

#if __has_include(<sys/single_threaded.h>)
#include <sys/single_threaded.h>
#define BRRR_ONE_THREAD __libc_single_threaded
#else
#define BRRR_ONE_THREAD false
#endif

namespace brrr {

/// AddressSanitizer finds uses after free only if free really frees.
inline constexpr bool kFreeLists =
#if defined(__SANITIZE_ADDRESS__)
    false;
#elif !defined(__has_feature)
    true;
#elif __has_feature(address_sanitizer)
    false;
#else
    true;
#endif

/// A count that starts at 1 by plain store: a locked read-modify-write is 4-5 ns, so creation and
/// the common last release avoid it, and so does everything while the process has one thread.
class RefCount {
 public:
  void reset() noexcept { n_.store(1, std::memory_order_relaxed); }
  void retain() noexcept {
    if (BRRR_ONE_THREAD) {
      n_.store(n_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    } else {
      n_.fetch_add(1, std::memory_order_relaxed);
    }
  }
  /// True when this was the last reference.
  bool release() noexcept {
    const uint32_t n = n_.load(std::memory_order_acquire);
    if (n == 1) return true;
    if (!BRRR_ONE_THREAD) return n_.fetch_sub(1, std::memory_order_acq_rel) == 1;
    n_.store(n - 1, std::memory_order_relaxed);
    return false;
  }
  uint32_t get() const noexcept { return n_.load(std::memory_order_acquire); }

 private:
  std::atomic<uint32_t> n_{1};
};

/// An intrusive pointer; T has a RefCount `refs` and a free function `destroy(T*)`.
template <class T> class Ref {
 public:
  Ref() = default;
  /// Takes over the reference that the caller holds.
  static Ref adopt(T* p) noexcept {
    Ref r;
    r.p_ = p;
    return r;
  }
  /// Adds a reference.
  static Ref share(T* p) noexcept {
    if (p) p->refs.retain();
    return adopt(p);
  }
  Ref(const Ref& o) noexcept : p_(o.p_) {
    if (p_) p_->refs.retain();
  }
  Ref(Ref&& o) noexcept : p_(std::exchange(o.p_, nullptr)) {}
  Ref& operator=(Ref o) noexcept {
    std::swap(p_, o.p_);
    return *this;
  }
  [[gnu::always_inline]] ~Ref() {
    if (p_) drop(p_);
  }
  void reset() noexcept {
    if (T* p = std::exchange(p_, nullptr); p && p->refs.release()) destroy(p);
  }
  T* detach() noexcept { return std::exchange(p_, nullptr); }
  T* get() const noexcept { return p_; }
  T* operator->() const noexcept { return p_; }
  T& operator*() const noexcept { return *p_; }
  explicit operator bool() const noexcept { return p_ != nullptr; }
  friend bool operator==(const Ref& a, const Ref& b) { return a.p_ == b.p_; }

 private:
  [[gnu::noinline]] static void drop(T* p) noexcept {
    if (p->refs.release()) destroy(p);
  }
  T* p_ = nullptr;
};

/// Per-thread list of blocks of sizeof(T). `take` and `give` are a handful of instructions; blocks
/// may be given back on another thread. Bounded, and emptied when its thread ends.
template <class T> class FreeList {
  struct Block {
    Block* next;
  };
  static_assert(sizeof(T) >= sizeof(Block));
  static constexpr uint32_t kMost = 8192;
  inline static thread_local constinit Block* head = nullptr;
  inline static thread_local constinit uint32_t room = 0;  // Blocks it can still take.
  inline static thread_local constinit bool opened = false;

  struct Closer {
    ~Closer() {
      room = 0;
      while (head) ::operator delete (std::exchange(head, head->next), std::align_val_t{64});
    }
  };
  // On the slow paths only, so that the fast ones have no thread_local guard. A thread that only
  // gives needs it as well: the blocks that it was given would leak.
  static void open() noexcept {
    if (!kFreeLists || std::exchange(opened, true)) return;
    static thread_local Closer closer;
    (void)closer;
    room = kMost;
  }
  [[gnu::noinline]] static void* fresh() {
    open();
    return ::operator new (sizeof(T), std::align_val_t{64});
  }
  [[gnu::noinline]] static void give_without_room(void* p) noexcept {
    open();
    if (room) return give(p);
    ::operator delete (p, std::align_val_t{64});
  }

 public:
  /// Whether take() has a block at hand.
  static bool ready() { return !kFreeLists || head; }
  static void* take() {
    Block* const b = head;
    if (!b) return fresh();
    head = b->next;
    ++room;
    return b;
  }
  static void give(void* p) noexcept {
    if (!room) return give_without_room(p);
    head = new (p) Block{head};
    --room;
  }
};

}  // namespace brrr
