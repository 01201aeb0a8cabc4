#include "ops/kinds/exchange.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <thread>

#include "core/check.h"
#include "core/signals.h"

namespace brrr::dist {

// MPI guarantees tags up to 32767: low ones are for buckets, those above for calls in order.
constexpr int kFirstTag = 3;  // Those before are for the thread itself.
constexpr int kReservedTags = 1 << 14, kOrderedTags = (1 << 14) - kFirstTag;

// An uncaught exception ends all ranks and names this one. If the program has set a terminate
// handler of its own, that one runs after the line is printed.
static void name_rank_at_terminate() {
  static const std::terminate_handler before = std::get_terminate();
  static const bool own = before != __gnu_cxx::__verbose_terminate_handler;
  std::set_terminate([] {
    std::string why = "terminated without an exception";
    try {
      if (const std::exception_ptr e = std::current_exception()) std::rethrow_exception(e);
    } catch (const std::exception& e) {
      why = e.what();
    } catch (...) {
      why = "an exception not derived from std::exception";
    }
    if (!own && !Exchange::get().in_child()) Exchange::get().abort(why);
    std::fprintf(stderr, "brrr: rank %d: %s\n", Exchange::get().rank(), why.c_str());
    before();
  });
}

void Exchange::begin() {
  if (ranks_of_environment() == 1) return;
  if (const char* limit = std::getenv("BRRR_DIST_LIMIT")) {
    char* end = nullptr;
    const double seconds = std::strtod(limit, &end);
    BRRR_CHECK(*limit && !*end && seconds > 0 && seconds < 1e9,
               "dist: BRRR_DIST_LIMIT is '{}', and must be a positive number of seconds", limit);
    set_limit(seconds);
  }
  const char* check = std::getenv("BRRR_DIST_CHECK");
  check_ = check && *check && *check != '0';
  {
    const SignalsBlocked blocked;
    std::thread([this] { run_thread(); }).detach();
  }
  auto joined = joined_.get_future();
  const std::chrono::duration<double> limit(limit_s_);
  if (joined.wait_for(limit) != std::future_status::ready) {
    // The others cannot be notified nor the wait cancelled: the launcher ends them when this fails.
    std::fprintf(stderr,
                 "brrr: rank %d of %d: waited %g s for the other processes to start; each calls "
                 "dist::init() at its beginning (BRRR_DIST_LIMIT sets the seconds)\n",
                 rank_of_environment(), ranks_of_environment(), limit.count());
    std::fflush(nullptr);
    std::_Exit(1);
  }
  joined.get();  // Rethrows what failed.
  name_rank_at_terminate();
  process_ = getpid();
  std::atexit([] {
    Exchange& e = get();
    if (e.in_child()) return;
    std::unique_lock end(e.mutex_);
    e.finish_ = true;
    e.work_.notify_all();
    e.done_.wait(end, [&] { return e.finished_; });
  });
}

Exchange& Exchange::get() {
  static Exchange* const e = [] {
    auto* const made = new Exchange;  // Never freed: its thread may run even if this throws.
    made->begin();
    return made;
  }();
  return *e;
}

void Exchange::start(std::shared_ptr<Job> job) {
  if (!transport_) {  // A single process: the row is the sum.
    job->done_ = true;
    return;
  }
  if (in_child()) {
    brrr::fail("{}: a process that was forked after dist::init() has no rank", job->what);
  }
  const std::lock_guard lock(mutex_);
  if (!broken_.empty()) brrr::fail("{}: an earlier collective failed: {}", job->what, broken_);
  job->began_ = now_s();
  job->stage_ = 0;
  job->waited_since_ = 0;
  job->done_ = false;
  queue_.push_back(std::move(job));
  work_.notify_all();
}

void Exchange::wait(Job& job) {
  wait_until_unused(job);
  if (!job.failure_.empty()) throw Error(job.failure_);
}

void Exchange::wait_until_unused(Job& job) noexcept {
  if (!transport_ || job.done_ || in_child()) return;
  const double begin = now_s();
  std::unique_lock lock(mutex_);
  ++waiting_;
  work_.notify_all();
  job.waited_since_ = begin;
  done_.wait(lock, [&] { return job.done_.load(); });
  --waiting_;
  waited_ns_ += static_cast<int64_t>((now_s() - begin) * 1e9);
}

void Exchange::retire(std::shared_ptr<Job> job) {
  if (!transport_ || in_child()) return;
  const std::lock_guard lock(mutex_);
  retired_.push_back(std::move(job));
  work_.notify_all();
}

int Exchange::next_tag() {
  static std::atomic<uint32_t> next{0};
  return kFirstTag + kReservedTags + static_cast<int>(next++ % kOrderedTags);
}

int Exchange::reserve_tags(int n) {
  const std::lock_guard lock(mutex_);
  reserved_.resize(kReservedTags);
  const auto first = std::search_n(reserved_.begin(), reserved_.end(), n, false);
  BRRR_CHECK(first != reserved_.end(),
             "dist: {} buckets of gradients in this process are too many; set bucket_bytes higher",
             std::count(reserved_.begin(), reserved_.end(), true) + n);
  std::fill_n(first, n, true);
  return kFirstTag + static_cast<int>(first - reserved_.begin());
}

void Exchange::return_tags(int first, int n) {
  if (in_child()) return;  // A thread may have held the lock when it was forked.
  const std::lock_guard lock(mutex_);
  std::fill_n(reserved_.begin() + (first - kFirstTag), n, false);
}

void Exchange::print_failure(const std::string& why) const {
  std::fprintf(stderr, "brrr: rank %d: %s\n", rank(), why.c_str());
}

void Exchange::abort(const std::string& why) {
  print_failure(why);
  std::fflush(nullptr);
  if (!transport_) std::_Exit(1);
  if (id_ == std::this_thread::get_id()) transport_->abort(1);
  std::unique_lock lock(mutex_);
  aborts_ = true;
  work_.notify_all();
  // The thread ends the run meanwhile, unless it has ended or is blocked in MPI: the launcher does.
  done_.wait_for(lock, std::chrono::seconds(5), [&] { return finished_; });
  std::_Exit(1);
}

void Exchange::set_limit(double seconds) {
  BRRR_CHECK(seconds > 0, "dist: the limit must be positive, got {} s", seconds);
  limit_s_ = seconds;
}

Stats Exchange::stats() const {
  return {jobs_, bytes_, 1e-9 * static_cast<double>(under_way_ns_),
          1e-9 * static_cast<double>(waited_ns_)};
}

}  // namespace brrr::dist
