// How the GPUs of a run are connected, and the thread that watches their exchanges.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <thread>

#include "core/check.h"
#include "core/context.h"
#include "core/signals.h"
#include "ops/kinds/device_exchange.h"

namespace brrr::dist {

namespace {

// What a rank reports about itself, in bytes.
struct RankInfo {
  char linked;        // It has a module for messages between GPUs.
  char identity[16];  // Of its GPU.
};

// NCCL would refuse with an error that says less.
void check_own_gpus(const std::vector<RankInfo>& all) {
  for (size_t a = 0; a < all.size(); ++a) {
    for (size_t b = a + 1; b < all.size(); ++b) {
      BRRR_CHECK(std::memcmp(all[a].identity, all[b].identity, sizeof all[a].identity) != 0,
                 "dist: ranks {} and {} use the same GPU, which NCCL does not serve; start each "
                 "with CUDA_VISIBLE_DEVICES set to its local rank (mpirun has it in "
                 "OMPI_COMM_WORLD_LOCAL_RANK; srun: --gpus-per-task=1), or all with "
                 "BRRR_NCCL_MODULE=none, to go through the host's memory",
                 a, b);
    }
  }
}

// A peer that is stuck blocks this rank's GPU and every wait for it. A peer that is merely busy
// goes on completing exchanges.
void watch() {
  static std::mutex& watching = *new std::mutex;
  const SignalsBlocked blocked;
  std::thread([] {
    using Clock = std::chrono::steady_clock;
    Exchange& e = Exchange::get();
    long seen = 0;
    for (Clock::time_point since = Clock::now();;) {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      const std::lock_guard lock(watching);
      const std::string trouble = device_link::trouble();
      if (!trouble.empty()) e.abort(fmt::format("messages between GPUs: {}", trouble));
      const long done = __atomic_load_n(exchanges_done(), __ATOMIC_RELAXED);
      if (done != seen || device_link::waited_s() == 0) {
        seen = done;
        since = Clock::now();
      } else if (Clock::now() - since > std::chrono::duration<double>(e.limit())) {
        e.abort(fmt::format(
            "waited {:.0f} s for the GPU, which exchanges with other ranks: one is stuck, or does "
            "something else (BRRR_DIST_CHECK=1 compares the calls, BRRR_DIST_LIMIT sets the "
            "seconds)",
            e.limit()));
      }
    }
  }).detach();
  std::atexit([] { watching.lock(); });  // Never unlocked: the thread stops here.
}

bool connect_gpus() {
  Exchange& e = Exchange::get();
  refuse_capture("the first exchange between GPUs");
  std::string why;
  std::vector<RankInfo> all(static_cast<size_t>(e.size()));
  RankInfo& own = all[static_cast<size_t>(e.rank())];
  own.linked = device_link::messages(why);
  const std::string identity = device_link::identity();
  identity.copy(own.identity, sizeof own.identity);
  const auto info_bytes = static_cast<int64_t>(all.size() * sizeof own);
  share("the GPUs of all ranks", Row(kUInt8, {{reinterpret_cast<char*>(all.data()), info_bytes}}));
  for (size_t r = 0; r < all.size(); ++r) {
    if (all[r].linked) continue;
    if (e.rank() == 0) {
      std::fprintf(stderr, "brrr: tensors on GPUs go through the host's memory: rank %zu %s%s\n", r,
                   "has no NCCL", why.empty() ? "" : (" (" + why + ")").c_str());
    }
    return false;
  }
  check_own_gpus(all);
  std::string id = e.rank() == 0 ? device_link::make_id() : std::string();
  auto bytes = static_cast<int64_t>(id.size());
  const Cuts one = owned_by(0, 1);
  share("the size of an id", Row(kInt64, {{reinterpret_cast<char*>(&bytes), 1}}, {&one}));
  id.resize(static_cast<size_t>(bytes));
  const Cuts all_of_it = owned_by(0, bytes);
  share("the id of all GPUs", Row(kUInt8, {{id.data(), bytes}}, {&all_of_it}));
  device_link::join(id, e.rank(), e.size());
  exchanges_done();  // Allocates now: a capture cannot.
  watch();
  return true;
}

}  // namespace

bool gpus_linked() {
  static const bool linked = connect_gpus();
  return linked;
}

long* exchanges_done() {
  static auto* const count = new (device_link::take_pinned(sizeof(long))) long{0};
  return count;
}

void compare_calls(const std::string& what) {
  // Completes before the first message.
  if (Exchange::get().checks() && context.site == 0) share(what, Row(kUInt8, {}));
}

}  // namespace brrr::dist
