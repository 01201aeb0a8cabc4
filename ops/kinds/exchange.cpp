#include "ops/kinds/exchange.h"

#include <sched.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>

#include "core/check.h"

namespace brrr::dist {

namespace {

using Clock = std::chrono::steady_clock;
constexpr int kReservedTags = 1 << 16;  // Of bucket after bucket; calls in order have those above.
constexpr int kOrderedTags = 1 << 20;
constexpr int kByeTag = 1, kSettingsTag = 2;
constexpr int kFirstTag = 3;
constexpr size_t kCallBytes = 256;  // Of a call in words.
constexpr std::chrono::microseconds kShortestPause{100}, kLongestPause{2000};

double now_s() { return std::chrono::duration<double>(Clock::now().time_since_epoch()).count(); }

}  // namespace

// What both sides see under the mutex, and the thread's own.
struct Exchange::Thread {
  std::mutex mutex;
  std::condition_variable work, done;
  std::deque<std::shared_ptr<Job>> queue;
  int waiting = 0;
  bool finish = false, finished = false, abort = false;
  std::string broken;  // Why no collective can be had any more.
  std::atomic<uint64_t> bytes{0}, jobs{0};
  std::atomic<int64_t> under_way_ns{0}, waited_ns{0};

  std::atomic<double> limit_s{60};
  std::atomic<bool> check{false};

  const Transport* transport = nullptr;
  std::vector<std::shared_ptr<Job>> active;
  std::vector<void*> byes;  // By rank: a receive that ends when that rank does.
  std::vector<bool> gone;
  double counted_to = 0;               // Seconds of under_way_ns.
  std::chrono::microseconds pause{0};  // Before the next look.
  char bye = 0;

  void run();
  void step();
  void end_all();
  bool advance(Job& job);
  void check_peers(const Job& job);
  bool test(Job& job);
  bool stage(Job& job);
  void check_calls(const Job& job);
  std::string share_settings();
  void fail(Job& job, const std::string& why);
  void finish_job(Job& job);
  void say_calls(Job& job);
};

// --- messages ------------------------------------------------------------------------------------

void Job::transfer(bool sends, int peer, const Piece* pieces, int n) {
  const Transport& t = *Exchange::get().transport();
  void* r = (sends ? t.send : t.receive)(pieces, n, peer, tag_);
  BRRR_CHECK(r, "{}: no message to or from rank {}: {}", what_, peer, t.error());
  messages_.push_back({r, peer});
  if (!sends) return;
  size_t bytes = 0;
  for (int k = 0; k < n; ++k) bytes += pieces[k].bytes;
  Exchange::get().thread_->bytes += bytes;
}

static std::vector<Piece> pieces_of(const std::vector<Span>& spans, DType dtype) {
  std::vector<Piece> pieces;
  for (const Span& s : spans) {
    pieces.push_back({s.at, static_cast<size_t>(s.n) * itemsize(dtype)});
  }
  return pieces;
}

void Job::send(int peer, const std::vector<Span>& spans, DType dtype) {
  const auto pieces = pieces_of(spans, dtype);
  if (!pieces.empty()) transfer(true, peer, pieces.data(), static_cast<int>(pieces.size()));
}

void Job::receive(int peer, const std::vector<Span>& spans, DType dtype) {
  const auto pieces = pieces_of(spans, dtype);
  if (!pieces.empty()) transfer(false, peer, pieces.data(), static_cast<int>(pieces.size()));
}

// --- the thread ----------------------------------------------------------------------------------

// Whether all messages of the job's stage are through.
bool Exchange::Thread::test(Job& job) {
  auto& all = job.messages_;
  for (size_t k = 0; k < all.size();) {
    const int state = transport->test(all[k].request);
    if (state < 0) {
      const int peer = all[k].peer;
      all.erase(all.begin() + static_cast<ptrdiff_t>(k));
      brrr::fail(
          "{}: a message to or from rank {} failed: {}; do all ranks make the same calls, "
          "and use the same parameters? (BRRR_DIST_CHECK=1 compares the calls)",
          job.what_, peer, transport->error());
    }
    state ? void(all.erase(all.begin() + static_cast<ptrdiff_t>(k))) : void(++k);
  }
  return all.empty();
}

// With `check` the peers first tell each other what they call.
void Exchange::Thread::say_calls(Job& job) {
  const int n = transport->size;
  job.calls_.assign(static_cast<size_t>(n), std::string(kCallBytes, '\0'));
  std::string& own = job.calls_[static_cast<size_t>(transport->rank)];
  own.replace(0, std::min(job.what_.size(), kCallBytes - 1), job.what_, 0, kCallBytes - 1);
  for (int peer = 0; peer < n; ++peer) {
    if (peer == transport->rank) continue;
    const Piece to{own.data(), kCallBytes},
        from{job.calls_[static_cast<size_t>(peer)].data(), kCallBytes};
    job.transfer(true, peer, &to, 1);
    job.transfer(false, peer, &from, 1);
  }
}

void Exchange::Thread::check_calls(const Job& job) {
  for (size_t peer = 0; peer < job.calls_.size(); ++peer) {
    const char* said = job.calls_[peer].c_str();
    if (job.what_.compare(0, kCallBytes - 1, said) == 0) continue;
    brrr::fail(
        "rank {} calls {}, rank {} calls {}: all ranks must make the same collectives in "
        "the same order",
        transport->rank, job.what_, peer, said);
  }
}

// Posts the next stage that has messages; false: the job is done.
bool Exchange::Thread::stage(Job& job) {
  for (;;) {
    const int number = job.stage_++;
    const int calls = check ? 1 : 0;
    if (check && number == 0) {
      say_calls(job);
    } else if (check && number == 1) {
      check_calls(job);
    }
    if (number >= calls && !job.post(number - calls)) return false;
    if (!job.messages_.empty()) return true;
  }
}

void Exchange::Thread::finish_job(Job& job) {
  // Of those under way at once each moment counts once.
  const double now = now_s();
  under_way_ns += static_cast<int64_t>((now - std::max(job.began_, counted_to)) * 1e9);
  counted_to = now;
  ++jobs;
  // The last touch: whoever waits may begin it again.
  std::erase_if(active, [&](const auto& j) { return j.get() == &job; });
  const std::lock_guard lock(mutex);
  job.done_ = true;
  done.notify_all();
}

void Exchange::Thread::fail(Job& job, const std::string& why) {
  for (const auto& m : job.messages_) transport->cancel(m.request);
  job.messages_.clear();
  job.failure_ = why;
  {
    const std::lock_guard lock(mutex);
    if (broken.empty()) broken = why;
  }
  finish_job(job);
}

// Throws if what the job waits for will not come.
void Exchange::Thread::check_peers(const Job& job) {
  const double since = job.waited_since_, limit = limit_s;
  const bool late = since > 0 && now_s() - since > limit;
  std::string missing;
  std::vector<bool> named(gone.size());
  for (const auto& m : job.messages_) {
    const auto peer = static_cast<size_t>(m.peer);
    BRRR_CHECK(!gone[peer], "{}: rank {} has ended its program", job.what_, peer);
    if (!late || named[peer]) continue;
    named[peer] = true;
    missing += fmt::format("{}{}", missing.empty() ? "" : ", ", peer);
  }
  BRRR_CHECK(!late,
             "{}: waited {:.0f} s for rank {}, which is stuck or does something else "
             "(BRRR_DIST_CHECK=1 compares the calls, BRRR_DIST_LIMIT sets the seconds)",
             job.what_, limit, missing);
}

// Whether anything has moved.
bool Exchange::Thread::advance(Job& job) {
  try {
    if (job.stage_ == 0 && job.ready_ && !job.ready_()) return false;
    const size_t before = job.messages_.size();
    if (job.stage_ > 0 && !test(job)) {
      check_peers(job);
      return job.messages_.size() != before;
    }
    if (!stage(job)) finish_job(job);
  } catch (const std::exception& e) {
    fail(job, e.what());
  }
  return true;
}

// Rank 0's limit and check hold for all, who may not see its environment. Returns what failed.
std::string Exchange::Thread::share_settings() {
  double settings[] = {limit_s, check ? 1.0 : 0.0};
  const Piece piece{settings, sizeof settings};
  const bool first = transport->rank == 0;
  for (int r = first ? 1 : 0; r < (first ? transport->size : 1); ++r) {
    void* const m = first ? transport->send(&piece, 1, r, kSettingsTag)
                          : transport->receive(&piece, 1, 0, kSettingsTag);
    int state = m ? 0 : -1;
    while (state == 0) {
      state = transport->test(m);
      sched_yield();
    }
    if (state < 0) return fmt::format("dist: no message between ranks: {}", transport->error());
  }
  limit_s = settings[0];
  check = settings[1] != 0;
  return "";
}

void Exchange::Thread::step() {
  bool moved = false;
  for (size_t k = 0; k < active.size();) {
    const std::shared_ptr<Job> job = active[k];
    moved |= advance(*job);
    if (k < active.size() && active[k] == job) ++k;  // Else it is done.
  }
  if (!broken.empty()) {
    while (!active.empty()) fail(*std::shared_ptr<Job>(active.front()), broken);
  }
  for (size_t r = 0; r < byes.size() && !moved; ++r) {
    if (!byes[r] || !transport->test(byes[r])) continue;
    byes[r] = nullptr;
    // What it sent before may be on its way: only the next look finds it missing.
    gone[r] = true;
  }
  if (moved) {
    pause = {};
    return;
  }
  std::unique_lock lock(mutex);
  if (!queue.empty() || abort) return;
  if (waiting > 0) {
    lock.unlock();
    sched_yield();  // Others may have to run for this to end.
  } else {
    // Nobody waits: this core is the computation's, and every look takes it away for a while.
    pause = std::clamp(2 * pause, kShortestPause, kLongestPause);
    work.wait_for(lock, pause);
  }
}

void Exchange::Thread::end_all() {
  for (int r = 0; r < transport->size; ++r) {
    if (byes[static_cast<size_t>(r)]) transport->cancel(byes[static_cast<size_t>(r)]);
    if (r == transport->rank) continue;
    const Piece piece{&bye, 1};
    if (void* message = transport->send(&piece, 1, r, kByeTag)) {
      // One byte is on its way at once, or its receiver is gone.
      for (int i = 0; i < 1000 && transport->test(message) == 0; ++i) sched_yield();
    }
  }
  // What has gone wrong here the others would wait for.
  if (!broken.empty()) transport->abort(1);
  transport->finish();
}

void Exchange::Thread::run() {
  for (;;) {
    {
      std::unique_lock lock(mutex);
      if (active.empty()) work.wait(lock, [&] { return !queue.empty() || finish || abort; });
      if (abort) transport->abort(1);
      for (; !queue.empty(); queue.pop_front()) active.push_back(queue.front());
      if (active.empty() && finish) break;
    }
    step();
  }
  end_all();
  const std::lock_guard lock(mutex);
  finished = true;
  done.notify_all();
}

// --- what others call ----------------------------------------------------------------------------

Exchange::Exchange() {
  if (ranks_of_environment() == 1) return;
  thread_ = new Thread;
  if (const char* limit = std::getenv("BRRR_DIST_LIMIT")) set_limit(std::atof(limit));
  const char* check = std::getenv("BRRR_DIST_CHECK");
  thread_->check = check && *check && *check != '0';
  std::string failure;
  std::thread([this, &failure] {
    Thread& t = *thread_;
    {
      const std::lock_guard lock(t.mutex);
      try {
        t.transport = join_run();
      } catch (const Error& e) {
        failure = e.what();
      }
      if (t.transport) {
        const auto n = static_cast<size_t>(t.transport->size);
        t.gone.assign(n, false);
        t.byes.assign(n, nullptr);
        for (size_t r = 0; r < n; ++r) {
          const Piece piece{&t.bye, 1};
          if (static_cast<int>(r) == t.transport->rank) continue;
          t.byes[r] = t.transport->receive(&piece, 1, static_cast<int>(r), kByeTag);
        }
      }
      if (t.transport && failure.empty()) failure = t.share_settings();
      t.finished = true;  // Of joining.
      t.done.notify_all();
    }
    if (t.transport) t.run();
  }).detach();
  std::unique_lock lock(thread_->mutex);
  thread_->done.wait(lock, [&] { return thread_->finished; });
  thread_->finished = false;
  if (!failure.empty()) throw Error(failure);
  transport_ = thread_->transport;
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
  const auto arm = [&] {
    job->began_ = now_s();
    job->stage_ = 0;
    job->waited_since_ = 0;
    job->done_ = false;
  };
  if (!transport_ || transport_->size == 1) {  // Alone: all stages, no messages.
    arm();
    for (int k = 0; job->post(k); ++k) {}
    job->done_ = true;
    return;
  }
  Thread& t = *thread_;
  const std::lock_guard lock(t.mutex);
  if (!t.broken.empty()) brrr::fail("{}: an earlier collective failed: {}", job->what_, t.broken);
  arm();
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

int Exchange::next_tag() {
  static std::atomic<uint32_t> next{0};
  return kFirstTag + kReservedTags + static_cast<int>(next++ % kOrderedTags);
}

int Exchange::reserve_tags(int n) {
  static std::atomic<int> next{kFirstTag};
  const int first = next.fetch_add(n);
  BRRR_CHECK(first + n <= kFirstTag + kReservedTags, "dist: too many buckets in this process");
  return first;
}

void Exchange::abort(const std::string& why) {
  std::fprintf(stderr, "brrr: rank %d: %s\n", rank(), why.c_str());
  std::fflush(nullptr);
  if (!transport_) std::_Exit(1);
  Thread& t = *thread_;
  {
    const std::lock_guard lock(t.mutex);
    t.abort = true;
    t.work.notify_all();
  }
  for (;;) std::this_thread::sleep_for(std::chrono::seconds(1));  // Until the run ends.
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
