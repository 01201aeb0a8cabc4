#include "backends/cpu/pool.h"

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cfenv>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "core/backend.h"
#include "backends/cpu/stream.h"
#include "tests/sanitizer.h"

using namespace brrr::cpu;
using brrr::parallel_for;

namespace {

struct ThreadCount {  // restores the setting at the end of a test
  int before = num_threads();
  explicit ThreadCount(int n) { set_num_threads(n); }
  ~ThreadCount() { set_num_threads(before); }
};

// Every index exactly once, chunk ends at multiples of the grain, no more chunks than threads.
bool covers(int64_t n, int64_t grain) {
  std::vector<std::atomic<int>> hits(static_cast<size_t>(n));
  std::atomic<int> chunks{0}, bad{0};
  parallel_for(n, grain, [&](int64_t begin, int64_t end) {
    ++chunks;
    if (begin >= end || begin < 0 || end > n) ++bad;
    if (begin % grain || (end % grain && end != n)) ++bad;
    for (int64_t i = begin; i < end; ++i) ++hits[static_cast<size_t>(i)];
  });
  for (const auto& hit : hits) bad += hit != 1;
  return bad == 0 && chunks <= num_threads() && (n > 0) == (chunks > 0);
}

int64_t parallel_sum(int64_t n) {
  std::atomic<int64_t> sum{0};
  parallel_for(n, 16, [&](int64_t begin, int64_t end) {
    int64_t local = 0;
    for (int64_t i = begin; i < end; ++i) local += i;
    sum += local;
  });
  return sum;
}

}  // namespace

TEST_CASE("pool: every range is covered exactly once") {
  for (int threads : {1, 2, 3, 8}) {
    const ThreadCount count(threads);
    for (int64_t n : {0, 1, 2, 3, 7, 8, 9, 63, 64, 65, 1000, 4097}) {
      for (int64_t grain : {1, 2, 7, 8, 64, 1000, 5000}) {
        CAPTURE(threads);
        CAPTURE(n);
        CAPTURE(grain);
        CHECK(covers(n, grain));
      }
    }
  }
}

TEST_CASE("pool: a short range runs inline, a long one on several threads") {
  const ThreadCount count(2);
  const auto caller = std::this_thread::get_id();
  bool inline_run = false;
  parallel_for(100, 100, [&](int64_t begin, int64_t end) {
    inline_run = begin == 0 && end == 100 && std::this_thread::get_id() == caller;
  });
  CHECK(inline_run);
  std::atomic<int> others{0};
  parallel_for(100, 1, [&](int64_t, int64_t) { others += std::this_thread::get_id() != caller; });
  CHECK(others == 1);
}

TEST_CASE("pool: all threads round as the caller does, and flush denormals where it does") {
  const ThreadCount count(4);
  parallel_sum(1 << 20);  // Starts the workers.
  const auto quotients = [] {
    std::vector<float> all(1 << 16, 1.0f);
    parallel_for(1 << 16, 16, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        volatile float x = all[static_cast<size_t>(i)];
        all[static_cast<size_t>(i)] = x / 3.0f;
      }
    });
    return all;
  };
  const std::vector<float> nearest = quotients();
  std::fesetround(FE_DOWNWARD);
  const std::vector<float> down = quotients();
  std::fesetround(FE_TONEAREST);
  CHECK(std::count(down.begin(), down.end(), down[0]) == 1 << 16);
  CHECK(down[0] < nearest[0]);
  CHECK(quotients() == nearest);
}

TEST_CASE("pool: nested regions run inline") {
  const ThreadCount count(4);
  std::atomic<int> inline_runs{0};
  parallel_for(8, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      parallel_for(1000, 1, [&, caller = std::this_thread::get_id()](int64_t from, int64_t to) {
        inline_runs += from == 0 && to == 1000 && std::this_thread::get_id() == caller;
      });
    }
  });
  CHECK(inline_runs == 8);
}

TEST_CASE("pool: the lowest chunk's exception reaches the caller after the join") {
  const ThreadCount count(4);
  for (int thrower = 0; thrower < 4; ++thrower) {
    std::atomic<int> ended{0};
    std::string caught;
    try {
      parallel_for(4, 1, [&](int64_t begin, int64_t) {
        ++ended;
        if (begin >= thrower) throw std::runtime_error(std::to_string(begin));
      });
    } catch (const std::runtime_error& error) {
      caught = error.what();
    }
    CHECK(caught == std::to_string(thrower));
    CHECK(ended == 4);
    CHECK(parallel_sum(1000) == 499500);
  }
}

TEST_CASE("pool: eight user threads at once") {
  const ThreadCount count(3);
  std::atomic<int> wrong{0};
  std::vector<std::thread> users;
  for (int t = 0; t < 8; ++t) {
    users.emplace_back([&] {
      for (int i = 0; i < 300; ++i) wrong += parallel_sum(1000 + i) != (999 + i) * (1000 + i) / 2;
    });
  }
  for (auto& user : users) user.join();
  CHECK(wrong == 0);
}

TEST_CASE("pool: the number of threads may change between and during regions") {
  const ThreadCount count(1);
  for (int n : {1, 4, 2, 8, 3, 1, 2}) {
    set_num_threads(n);
    CHECK(num_threads() == n);
    CHECK(covers(1000, 3));
  }
  set_num_threads(-5);
  CHECK(num_threads() == 1);
  set_num_threads(2);
  parallel_for(100, 1, [](int64_t, int64_t) { set_num_threads(6); });
  CHECK(covers(500, 1));
}

TEST_CASE("pool: more threads than CPUs") {
  const ThreadCount count(8);
  for (int i = 0; i < 300; ++i) CHECK_UNARY(parallel_sum(5000) == 12497500);
}

TEST_CASE("pool: sleeping workers are woken") {
  const ThreadCount count(2);
  parallel_sum(1000);
  const auto caller = std::this_thread::get_id();
  for (int i = 0; i < 20; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
    std::atomic<int> others{0};
    parallel_for(100, 1, [&](int64_t, int64_t) { others += std::this_thread::get_id() != caller; });
    CHECK(others == 1);
  }
}

TEST_CASE("pool: a forked child runs inline") {
  if (brrr::test::kThreadSanitizer) return;
  const ThreadCount count(2);
  parallel_sum(1000);
  const pid_t child = fork();
  if (child == 0) _exit(parallel_sum(1000) == 499500 ? 0 : 1);
  int status = -1;
  waitpid(child, &status, 0);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  CHECK(parallel_sum(1000) == 499500);
}

TEST_CASE("pool: signals are left to the user's threads") {
  const ThreadCount count(2);
  const auto caller = std::this_thread::get_id();
  std::atomic<int> wrong{0};
  parallel_for(1000, 16, [&](int64_t, int64_t) {
    sigset_t blocked;
    pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
    const bool own = std::this_thread::get_id() == caller;
    wrong += sigismember(&blocked, SIGTERM) == own;
    wrong += sigismember(&blocked, SIGSEGV);  // Its handler reports the location.
  });
  CHECK(wrong == 0);
}

TEST_CASE("pool: the round trip is measured") {
  const ThreadCount count(2);
  CHECK(brrr::cpu::round_trip_ns() > 0);
  set_num_threads(1);
  CHECK(brrr::cpu::round_trip_ns() == 0);
}
