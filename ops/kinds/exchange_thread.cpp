// The thread that sends and receives.
#include "ops/kinds/exchange_thread.h"

#include <sched.h>

#include <algorithm>
#include <cstdio>
#include <set>
#include <utility>

#include "core/check.h"

namespace brrr::dist {

namespace {

constexpr int kTellTag = 0, kByeTag = 1, kSettingsTag = 2;
constexpr size_t kCallBytes = 256;    // Of a call in words.
constexpr double kAnswerSeconds = 1;  // So long a peer that is alive takes to answer, at most.
constexpr std::chrono::microseconds kShortestPause{100}, kLongestPause{2000};

}  // namespace

// Whether all messages of the job's stage are through.
bool Exchange::Thread::test(Job& job) {
  for (Job::Message& m : job.messages_) {
    if (!m.under_way) continue;
    const int state = transport->test(m.request);
    if (state == 0) continue;
    m.under_way = false;
    --job.under_way_;
    if (state > 0) continue;
    brrr::fail(
        "{}: a message to or from rank {} failed: {}; do all ranks make the same calls, "
        "and use the same parameters? (BRRR_DIST_CHECK=1 compares the calls)",
        job.what_, m.peer, transport->error());
  }
  return job.under_way_ == 0;
}

void Exchange::Thread::start(Job& job, int stage) {
  for (Job::Message& m : job.messages_) {
    if (m.stage != stage) continue;
    BRRR_CHECK(transport->start(m.request), "{}: no message to or from rank {}: {}", job.what_,
               m.peer, transport->error());
    m.under_way = true;
    ++job.under_way_;
    bytes += m.sent;
  }
}

// Its messages, none of which is under way; with `calls` only those that compare them.
void Exchange::Thread::release(Job& job, bool calls) {
  std::erase_if(job.messages_, [&](const Job::Message& m) {
    if (calls && m.stage != Job::kCalls) return false;
    transport->release(m.request);
    return true;
  });
}

// With `check` the peers first tell each other what they call.
void Exchange::Thread::say_calls(Job& job) {
  const int n = transport->size;
  job.calls_.assign(static_cast<size_t>(n), std::string(kCallBytes, '\0'));
  std::string& own = job.calls_[static_cast<size_t>(transport->rank)];
  own.replace(0, std::min(job.what_.size(), kCallBytes - 1), job.what_, 0, kCallBytes - 1);
  for (int peer = 0; peer < n; ++peer) {
    if (peer == transport->rank) continue;
    job.declare(Job::kCalls, true, peer, {{own.data(), kCallBytes}});
    job.declare(Job::kCalls, false, peer,
                {{job.calls_[static_cast<size_t>(peer)].data(), kCallBytes}});
  }
  start(job, Job::kCalls);
}

void Exchange::Thread::check_calls(Job& job) {
  release(job, true);
  for (size_t peer = 0; peer < job.calls_.size(); ++peer) {
    const char* said = job.calls_[peer].c_str();
    if (job.what_.compare(0, kCallBytes - 1, said) == 0) continue;
    brrr::fail(
        "rank {} calls {}, rank {} calls {}: all ranks must make the same collectives in "
        "the same order",
        transport->rank, job.what_, peer, said);
  }
}

// Starts the next stage that has messages; false: the job is done.
bool Exchange::Thread::stage(Job& job) {
  if (std::exchange(job.changed_, false)) {
    release(job);
    job.declare();
  }
  const int calls = check ? 1 : 0;
  do {
    const int number = job.stage_++;
    if (check && number == 0) {
      say_calls(job);
      return true;
    }
    if (check && number == 1) check_calls(job);
    const int at = number - calls;
    if (at == 1) job.compute();
    if (at == static_cast<int>(job.plan_.stages.size())) return false;
    start(job, at);
  } while (job.under_way_ == 0);
  return true;
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
  for (const auto& m : job.messages_)
    (m.under_way ? transport->cancel : transport->release)(m.request);
  job.messages_.clear();
  job.under_way_ = 0;
  job.failure_ = why;
  {
    const std::lock_guard lock(mutex);
    // Nobody else would say it any more.
    if (broken.empty() && ends_since > 0) say(why);
    if (broken.empty()) broken = why;
  }
  finish_job(job);
}

void Exchange::Thread::say(const std::string& why) const {
  std::fprintf(stderr, "brrr: rank %d: %s\n", transport ? transport->rank : 0, why.c_str());
}

// What this rank is in, to all others, once: somebody has waited too long.
void Exchange::Thread::tell_all() {
  if (told_at > 0) return;
  told_at = now_s();
  for (const bool waited : {true, false}) {
    for (const auto& job : active) {
      if ((job->waited_since_ > 0) != waited) continue;
      own_state += (own_state.empty() ? "in " : ", ") + job->what_;
    }
  }
  if (own_state.empty()) own_state = "in no collective";
  own_state.resize(kCallBytes - 1);
  const Piece piece{own_state.data(), kCallBytes};
  for (int r = 0; r < transport->size; ++r) {
    // They end when they end: the run is about to.
    void* const m = r == transport->rank ? nullptr : transport->send(&piece, 1, r, kTellTag);
    if (m) transport->start(m);
  }
}

// Who is told tells, too.
void Exchange::Thread::hear_all() {
  for (void*& heard : hears) {
    if (!heard || !transport->test(heard)) continue;
    transport->release(std::exchange(heard, nullptr));
    tell_all();
  }
}

// Throws if what the job waits for will not come.
void Exchange::Thread::check_peers(const Job& job) {
  const double since = job.waited_since_ > 0 ? job.waited_since_.load() : ends_since;
  const bool late = !job.patient_ && since > 0 && now_s() - since > limit_s;
  std::set<size_t> missing;
  for (const auto& m : job.messages_) {
    if (!m.under_way) continue;
    const auto peer = static_cast<size_t>(m.peer);
    BRRR_CHECK(!gone[peer], "{}: rank {} has ended its program", job.what_, peer);
    if (late) missing.insert(peer);  // Which else would allocate, at every look.
  }
  if (!late) return;
  tell_all();
  std::string words;
  for (const size_t r : missing) {
    const char* state = told[r].c_str();
    if (!*state && now_s() - told_at < kAnswerSeconds) return;
    words += fmt::format("{}rank {}, which {}{}", words.empty() ? "" : "; ", r, *state ? "is " : "",
                         *state ? state : "does not answer");
  }
  brrr::fail("{}: waited {:.0f} s for {} ({}BRRR_DIST_LIMIT sets the seconds)", job.what_,
             limit_s.load(), words.empty() ? "this rank's part" : words,
             check ? "" : "BRRR_DIST_CHECK=1 compares the calls, ");
}

// Whether anything has moved.
bool Exchange::Thread::advance(Job& job) {
  try {
    if (job.stage_ == 0 && job.ready_ && !job.ready_()) {
      if (ends_since > 0) check_peers(job);
      return false;
    }
    const size_t before = job.under_way_;
    if (job.stage_ > 0 && !test(job)) {
      check_peers(job);
      return job.under_way_ != before;
    }
    if (!stage(job)) finish_job(job);
  } catch (const std::exception& e) {
    fail(job, e.what());
  }
  return true;
}

// One message, waited for.
bool Exchange::Thread::exchange_now(const Piece& piece, bool sends, int peer, int tag) {
  void* const m = (sends ? transport->send : transport->receive)(&piece, 1, peer, tag);
  if (!m) return false;
  int state = transport->start(m) ? 0 : -1;
  while (state == 0) {
    state = transport->test(m);
    sched_yield();
  }
  transport->release(m);
  return state > 0;
}

// Rank 0's limit and check hold for all, who may not see its environment. Returns what failed.
std::string Exchange::Thread::share_settings() {
  double settings[] = {limit_s, check ? 1.0 : 0.0};
  const Piece piece{settings, sizeof settings};
  const bool first = transport->rank == 0;
  for (int r = first ? 1 : 0; r < (first ? transport->size : 1); ++r) {
    if (exchange_now(piece, first, r, kSettingsTag)) continue;
    return fmt::format("dist: no message between ranks: {}", transport->error());
  }
  limit_s = settings[0];
  check = settings[1] != 0;
  return "";
}

std::string Exchange::Thread::join() {
  try {
    transport = join_run();
  } catch (const Error& e) {
    return e.what();
  }
  const auto n = static_cast<size_t>(transport->size);
  gone.assign(n, false);
  byes.assign(n, nullptr);
  hears.assign(n, nullptr);
  told.assign(n, std::string(kCallBytes, '\0'));
  for (size_t r = 0; r < n; ++r) {
    if (static_cast<int>(r) == transport->rank) continue;
    const auto receive = [&](const Piece& piece, int tag) {
      void* const m = transport->receive(&piece, 1, static_cast<int>(r), tag);
      return m && transport->start(m) ? m : nullptr;
    };
    byes[r] = receive({&bye, 1}, kByeTag);
    hears[r] = receive({told[r].data(), kCallBytes}, kTellTag);
  }
  return share_settings();
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
    transport->release(byes[r]);
    byes[r] = nullptr;
    // What it sent before may be on its way: only the next look finds it missing.
    gone[r] = true;
  }
  if (!moved) hear_all();
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
    for (void* m : {byes[static_cast<size_t>(r)], hears[static_cast<size_t>(r)]}) {
      if (m) transport->cancel(m);
    }
    if (r == transport->rank) continue;
    const Piece piece{&bye, 1};
    void* const message = transport->send(&piece, 1, r, kByeTag);
    if (message && transport->start(message)) {
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
      if (active.empty()) {
        work.wait(lock, [&] { return !queue.empty() || !retired.empty() || finish || abort; });
      }
      if (abort) transport->abort(1);
      // Whatever is still under way is waited for from now on, whether anybody does or not.
      if (finish && ends_since == 0) ends_since = now_s();
      active.insert(active.end(), queue.begin(), queue.end());
      queue.clear();
      std::swap(ended, retired);
      if (active.empty() && finish) break;
    }
    for (const auto& job : ended) release(*job);
    ended.clear();
    step();
  }
  end_all();
  const std::lock_guard lock(mutex);
  finished = true;
  done.notify_all();
}

}  // namespace brrr::dist
