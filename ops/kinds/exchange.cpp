#include "ops/kinds/exchange.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <thread>

#include "core/check.h"
#include "ops/kinds/exchange_thread.h"

namespace brrr::dist {

// MPI promises tags to 32767: of bucket after bucket, and above them of calls in order.
constexpr int kFirstTag = 3;  // Those before are the thread's own.
constexpr int kReservedTags = 1 << 14, kOrderedTags = (1 << 14) - kFirstTag;

// An exception that nobody catches ends all ranks, with this one's number. A program that has set a
// handler of its own gets there after that line.
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
      why = "an exception that is no std::exception";
    }
    if (!own) Exchange::get().abort(why);
    std::fprintf(stderr, "brrr: rank %d: %s\n", Exchange::get().rank(), why.c_str());
    before();
  });
}

Exchange::Exchange() {
  if (ranks_of_environment() == 1) return;
  thread_ = new Thread;
  if (const char* limit = std::getenv("BRRR_DIST_LIMIT")) {
    char* end = nullptr;
    const double seconds = std::strtod(limit, &end);
    BRRR_CHECK(*limit && !*end && seconds > 0 && seconds < 1e9,
               "dist: BRRR_DIST_LIMIT is '{}', and must be a positive number of seconds", limit);
    set_limit(seconds);
  }
  const char* check = std::getenv("BRRR_DIST_CHECK");
  thread_->check = check && *check && *check != '0';
  std::thread([&t = *thread_] {
    std::string failure = t.join();
    {
      const std::lock_guard lock(t.mutex);
      t.id = std::this_thread::get_id();
      t.failure = std::move(failure);
      t.joined = true;
      t.done.notify_all();
    }
    if (t.failure.empty()) t.run();
  }).detach();
  std::unique_lock lock(thread_->mutex);
  const std::chrono::duration<double> limit(thread_->limit_s);
  if (!thread_->done.wait_for(lock, limit, [&] { return thread_->joined; })) {
    // Nobody can be told, nor the wait be ended: the launcher ends the others when this one fails.
    std::fprintf(stderr,
                 "brrr: rank %d of %d: waited %g s for the other processes to start; each calls "
                 "dist::init() at its beginning (BRRR_DIST_LIMIT sets the seconds)\n",
                 rank_of_environment(), ranks_of_environment(), limit.count());
    std::fflush(nullptr);
    std::_Exit(1);
  }
  if (!thread_->failure.empty()) throw Error(thread_->failure);
  transport_ = thread_->transport;
  if (transport_->size > 1) name_rank_at_terminate();
  std::atexit([] {
    Thread& t = *get().thread_;
    std::unique_lock end(t.mutex);
    t.finish = true;
    t.work.notify_all();
    t.done.wait(end, [&] { return t.finished; });
  });
}

Exchange& Exchange::get() {
  static Exchange* const e = new Exchange;
  return *e;
}

void Exchange::start(std::shared_ptr<Job> job) {
  if (!transport_ || transport_->size == 1) {  // Alone: a sum is there already.
    job->done_ = true;
    return;
  }
  Thread& t = *thread_;
  const std::lock_guard lock(t.mutex);
  if (!t.broken.empty()) brrr::fail("{}: an earlier collective failed: {}", job->what_, t.broken);
  job->began_ = now_s();
  job->stage_ = 0;
  job->waited_since_ = 0;
  job->done_ = false;
  t.queue.push_back(std::move(job));
  t.work.notify_all();
}

void Exchange::wait(Job& job) {
  if (!transport_) return;
  Thread& t = *thread_;
  if (!job.done_) {
    const double begin = now_s();
    std::unique_lock lock(t.mutex);
    ++t.waiting;
    t.work.notify_all();
    job.waited_since_ = begin;
    t.done.wait(lock, [&] { return job.done_.load(); });
    --t.waiting;
    t.waited_ns += static_cast<int64_t>((now_s() - begin) * 1e9);
  }
  if (!job.failure_.empty()) throw Error(job.failure_);
}

void Exchange::let_go(Job& job) noexcept {
  try {
    wait(job);
  } catch (const Error&) {
    // It has failed, and is not active.
  }
}

void Exchange::retire(std::shared_ptr<Job> job) {
  if (!thread_) return;
  const std::lock_guard lock(thread_->mutex);
  thread_->retired.push_back(std::move(job));
  thread_->work.notify_all();
}

void Exchange::run(const std::shared_ptr<Job>& job) {
  start(job);
  wait(*job);
  retire(job);
}

int Exchange::next_tag() {
  static std::atomic<uint32_t> next{0};
  return kFirstTag + kReservedTags + static_cast<int>(next++ % kOrderedTags);
}

struct Reserved {
  std::mutex mutex;
  std::vector<bool> used = std::vector<bool>(kReservedTags);  // By number - kFirstTag.
};
static Reserved& reserved() {
  static Reserved& r = *new Reserved;
  return r;
}

int Exchange::reserve_tags(int n) {
  auto& [mutex, used] = reserved();
  const std::lock_guard lock(mutex);
  const auto first = std::search_n(used.begin(), used.end(), n, false);
  BRRR_CHECK(first != used.end(),
             "dist: {} buckets of gradients in this process are too many; set bucket_bytes higher",
             std::count(used.begin(), used.end(), true) + n);
  std::fill_n(first, n, true);
  return kFirstTag + static_cast<int>(first - used.begin());
}

void Exchange::return_tags(int first, int n) {
  auto& [mutex, used] = reserved();
  const std::lock_guard lock(mutex);
  std::fill_n(used.begin() + (first - kFirstTag), n, false);
}

void Exchange::abort(const std::string& why) {
  std::fprintf(stderr, "brrr: rank %d: %s\n", rank(), why.c_str());
  std::fflush(nullptr);
  if (!transport_) std::_Exit(1);
  Thread& t = *thread_;
  if (t.id == std::this_thread::get_id()) transport_->abort(1);
  std::unique_lock lock(t.mutex);
  t.abort = true;
  t.work.notify_all();
  // The run ends meanwhile, unless its thread has ended or waits in MPI: then by the launcher.
  t.done.wait_for(lock, std::chrono::seconds(5), [&] { return t.finished; });
  std::_Exit(1);
}

void Exchange::set_limit(double seconds) {
  BRRR_CHECK(seconds > 0, "dist: the limit must be positive, got {} s", seconds);
  if (thread_) thread_->limit_s = seconds;
}

double Exchange::limit() const { return thread_ ? thread_->limit_s.load() : 0; }
bool Exchange::checks() const { return thread_ && thread_->check; }

Stats Exchange::stats() const {
  if (!thread_) return {};
  return {thread_->jobs, thread_->bytes, 1e-9 * static_cast<double>(thread_->under_way_ns),
          1e-9 * static_cast<double>(thread_->waited_ns)};
}

}  // namespace brrr::dist
