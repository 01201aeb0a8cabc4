#pragma once
// The thread that talks to the other processes: what it and those who call it share.

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "ops/kinds/exchange.h"

namespace brrr::dist {

inline double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// What both sides see under the mutex, and the thread's own.
struct Exchange::Thread {
  std::mutex mutex;
  std::condition_variable work, done;
  std::vector<std::shared_ptr<Job>> queue, retired;
  int waiting = 0;
  bool joined = false, finish = false, finished = false, abort = false;
  std::string failure;  // To join.
  std::string broken;   // Why no collective can be had any more.
  std::thread::id id;
  std::atomic<uint64_t> bytes{0}, jobs{0};
  std::atomic<int64_t> under_way_ns{0}, waited_ns{0};

  std::atomic<double> limit_s{60};
  std::atomic<bool> check{false};

  const Transport* transport = nullptr;
  std::vector<std::shared_ptr<Job>> active, ended;
  std::vector<void*> byes;  // By rank: a receive that ends when that rank does.
  std::vector<bool> gone;
  double ends_since = 0;  // Nothing else is computed.
  // Once somebody has waited too long, all tell each other what they are in.
  std::vector<void*> hears;       // By rank: a receive of it.
  std::vector<std::string> told;  // By them.
  std::string own_state;
  double told_at = 0;                  // When this rank has.
  double counted_to = 0;               // Seconds of under_way_ns.
  std::chrono::microseconds pause{0};  // Before the next look.
  char bye = 0;

  // Joins the run; returns what failed.
  std::string join();
  void run();
  void step();
  void end_all();
  bool advance(Job& job);
  void check_peers(const Job& job);
  void tell_all();
  void hear_all();
  bool test(Job& job);
  bool stage(Job& job);
  void start(Job& job, int stage);
  void release(Job& job, bool calls = false);
  void check_calls(Job& job);
  bool exchange_now(const Piece& piece, bool sends, int peer, int tag);
  std::string share_settings();
  void say(const std::string& why) const;
  void fail(Job& job, const std::string& why);
  void finish_job(Job& job);
  void say_calls(Job& job);
};

}  // namespace brrr::dist
