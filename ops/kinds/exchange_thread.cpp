// The thread that sends and receives.
#include "ops/kinds/exchange.h"

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

class Exchange::Thread {
 public:
  explicit Thread(Exchange& e) : e_(e) {}

  /// Joins the run.
  void join() {
    e_.transport_ = transport_ = join_run();
    peers_.resize(static_cast<size_t>(transport_->size));
    for_peers([&](int r, Peer& p) {
      const auto receive = [&](const Piece& piece, int tag) {
        void* const m = transport_->receive(&piece, 1, r, tag);
        return m && transport_->start(m) ? m : nullptr;
      };
      p.told.resize(kCallBytes);
      p.bye = receive({&bye_, 1}, kByeTag);
      p.hears = receive({p.told.data(), kCallBytes}, kTellTag);
    });
    share_settings();
  }

  void serve() {
    {
      // How many jobs meet in one is a matter of time: replays are to take no memory, ever.
      const std::lock_guard lock(e_.mutex_);
      for (auto* jobs : {&e_.queue_, &active_, &ended_, &e_.retired_}) jobs->reserve(256);
    }
    for (;;) {
      {
        std::unique_lock lock(e_.mutex_);
        if (active_.empty()) {
          e_.work_.wait(lock, [&] {
            return !e_.queue_.empty() || !e_.retired_.empty() || e_.finish_ || e_.aborts_;
          });
        }
        if (e_.aborts_) {
          const bool waits = std::ranges::any_of(peers_, [](const Peer& p) { return p.gone; });
          if (!waits) transport_->abort(1);
          if (e_.broken_.empty()) e_.broken_ = "the run ends";  // See end_all().
          break;
        }
        // Whatever is still under way is waited for from now on, whether anybody does or not.
        if (e_.finish_ && ends_since_ == 0) ends_since_ = now_s();
        active_.insert(active_.end(), e_.queue_.begin(), e_.queue_.end());
        e_.queue_.clear();
        std::swap(ended_, e_.retired_);
        if (active_.empty() && e_.finish_) break;
      }
      for (const auto& job : ended_) release(*job);
      ended_.clear();
      step();
    }
    end_all();
    const std::lock_guard lock(e_.mutex_);
    e_.finished_ = true;
    e_.done_.notify_all();
  }

 private:
  struct Peer {
    void* bye = nullptr;  // A receive that ends when that rank does.
    bool gone = false;
    void* hears = nullptr;  // Once somebody has waited too long, all tell each other what they are
    std::string told;       // in: a receive of it.
  };
  // f(rank, peer) for all others.
  template <class F> void for_peers(const F& f) {
    for (size_t r = 0; r < peers_.size(); ++r) {
      if (static_cast<int>(r) != transport_->rank) f(static_cast<int>(r), peers_[r]);
    }
  }

  // Whether all messages of the job's stage are through.
  bool test(Job& job) {
    for (Job::Message& m : job.messages_) {
      if (!m.under_way) continue;
      const int state = transport_->test(m.request);
      if (state == 0) continue;
      m.under_way = false;
      --job.under_way_;
      if (state > 0) continue;
      brrr::fail(
          "{}: a message to or from rank {} failed: {}; do all ranks make the same calls, "
          "and use the same parameters? (BRRR_DIST_CHECK=1 compares the calls)",
          job.what, m.peer, transport_->error());
    }
    return job.under_way_ == 0;
  }

  void start_messages(Job& job, int stage) {
    for (Job::Message& m : job.messages_) {
      if (m.stage != stage) continue;
      BRRR_CHECK(transport_->start(m.request), "{}: no message to or from rank {}: {}", job.what,
                 m.peer, transport_->error());
      m.under_way = true;
      ++job.under_way_;
      e_.bytes_ += m.sent;
    }
  }

  // Its messages, none of which is under way; with `calls` only those that compare them.
  void release(Job& job, bool calls = false) {
    std::erase_if(job.messages_, [&](const Job::Message& m) {
      if (calls && m.stage != Job::kCalls) return false;
      transport_->release(m.request);
      return true;
    });
  }

  // With `check` the peers first tell each other what they call.
  void say_calls(Job& job) {
    job.calls_.assign(peers_.size(), std::string(kCallBytes, '\0'));
    std::string& own = job.calls_[static_cast<size_t>(transport_->rank)];
    job.what.copy(own.data(), kCallBytes - 1);
    for_peers([&](int r, const Peer&) {
      job.declare(Job::kCalls, true, r, {{own.data(), kCallBytes}});
      job.declare(Job::kCalls, false, r, {{job.calls_[static_cast<size_t>(r)].data(), kCallBytes}});
    });
  }

  void check_calls(Job& job) {
    release(job, true);
    for (size_t peer = 0; peer < job.calls_.size(); ++peer) {
      const char* said = job.calls_[peer].c_str();
      if (job.what.compare(0, kCallBytes - 1, said) == 0) continue;
      brrr::fail(
          "rank {} calls {}, rank {} calls {}: all ranks must make the same collectives in "
          "the same order",
          transport_->rank, job.what, peer, said);
    }
  }

  // Starts the next stage that has messages; false: the job is done.
  bool stage(Job& job) {
    if (std::exchange(job.changed_, false)) {
      release(job);
      job.declare();
    }
    do {
      const int at = job.stage_++;
      if (at == Job::kCalls && e_.check_) say_calls(job);
      if (at == 1 && e_.check_) check_calls(job);
      if (at == 2) job.compute();
      if (at == 1 + static_cast<int>(job.plan_.stages.size())) return false;
      start_messages(job, at);
    } while (job.under_way_ == 0);
    return true;
  }

  void finish_job(Job& job) {
    // Of those under way at once each moment counts once.
    const double now = now_s();
    e_.under_way_ns_ += static_cast<int64_t>((now - std::max(job.began_, counted_to_)) * 1e9);
    counted_to_ = now;
    ++e_.jobs_;
    // The last touch: whoever waits may begin it again.
    std::erase_if(active_, [&](const auto& j) { return j.get() == &job; });
    const std::lock_guard lock(e_.mutex_);
    job.done_ = true;
    e_.done_.notify_all();
  }

  void fail(Job& job, const std::string& why) {
    for (const auto& m : job.messages_)
      (m.under_way ? transport_->cancel : transport_->release)(m.request);
    job.messages_.clear();
    job.under_way_ = 0;
    job.failure_ = why;
    {
      const std::lock_guard lock(e_.mutex_);
      // Nobody else would say it any more.
      if (e_.broken_.empty() && ends_since_ > 0) e_.say(why);
      if (e_.broken_.empty()) e_.broken_ = why;
    }
    finish_job(job);
  }

  // What this rank is in, to all others, once: somebody has waited too long.
  void tell_all() {
    if (told_at_ > 0) return;
    told_at_ = now_s();
    for (const bool waited : {true, false}) {
      for (const auto& job : active_) {
        if ((job->waited_since_ > 0) != waited) continue;
        own_state_ += (own_state_.empty() ? "in " : ", ") + job->what;
      }
    }
    if (own_state_.empty()) own_state_ = "in no collective";
    own_state_.resize(kCallBytes - 1);
    const Piece piece{own_state_.data(), kCallBytes};
    for_peers([&](int r, const Peer&) {
      // They end when they end: the run is about to.
      if (void* const m = transport_->send(&piece, 1, r, kTellTag)) transport_->start(m);
    });
  }

  // Throws if what the job waits for will not come.
  void check_peers(const Job& job) {
    const double since = job.waited_since_ > 0 ? job.waited_since_.load() : ends_since_;
    const bool late = !job.patient && since > 0 && now_s() - since > e_.limit_s_;
    std::set<size_t> missing;
    for (const auto& m : job.messages_) {
      if (!m.under_way) continue;
      const auto peer = static_cast<size_t>(m.peer);
      BRRR_CHECK(!peers_[peer].gone, "{}: rank {} has ended its program", job.what, peer);
      if (late) missing.insert(peer);  // Which else would allocate, at every look.
    }
    if (!late) return;
    tell_all();
    std::string words;
    for (const size_t r : missing) {
      const char* state = peers_[r].told.c_str();
      if (!*state && now_s() - told_at_ < kAnswerSeconds) return;
      words += fmt::format("{}rank {}, which {}{}", words.empty() ? "" : "; ", r,
                           *state ? "is " : "", *state ? state : "does not answer");
    }
    brrr::fail("{}: waited {:.0f} s for {} ({}BRRR_DIST_LIMIT sets the seconds)", job.what,
               e_.limit_s_.load(), words.empty() ? "this rank's part" : words,
               e_.check_ ? "" : "BRRR_DIST_CHECK=1 compares the calls, ");
  }

  // Whether anything has moved.
  bool advance(Job& job) {
    try {
      if (job.stage_ == 0 && job.ready && !job.ready()) {
        // While this rank's GPU computes nobody is waited for, unless the process ends.
        if (ends_since_ > 0)
          check_peers(job);
        else if (job.waited_since_ > 0)
          job.waited_since_ = now_s();
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

  // Rank 0's limit and check hold for all, who may not see its environment.
  void share_settings() {
    double settings[] = {e_.limit_s_, e_.check_ ? 1.0 : 0.0};
    const Piece piece{settings, sizeof settings};
    const bool first = transport_->rank == 0;
    for (int r = first ? 1 : 0; r < (first ? transport_->size : 1); ++r) {
      void* const m = (first ? transport_->send : transport_->receive)(&piece, 1, r, kSettingsTag);
      int state = m && transport_->start(m) ? 0 : -1;
      for (; state == 0; sched_yield()) state = transport_->test(m);
      if (m) transport_->release(m);
      BRRR_CHECK(state > 0, "dist: no message between ranks: {}", transport_->error());
    }
    e_.limit_s_ = settings[0];
    e_.check_ = settings[1] != 0;
  }

  void step() {
    bool moved = false;
    for (size_t k = 0; k < active_.size();) {
      const std::shared_ptr<Job> job = active_[k];
      moved |= advance(*job);
      if (k < active_.size() && active_[k] == job) ++k;  // Else it is done.
    }
    if (!e_.broken_.empty()) {
      while (!active_.empty()) fail(*std::shared_ptr<Job>(active_.front()), e_.broken_);
    }
    if (moved) {
      pause_ = {};
      return;
    }
    for (Peer& p : peers_) {
      // What it sent before may be on its way: only the next look finds it missing.
      if (p.bye && transport_->test(p.bye)) {
        transport_->release(std::exchange(p.bye, nullptr));
        p.gone = true;
      }
      if (p.hears && transport_->test(p.hears)) {  // Who is told tells, too.
        transport_->release(std::exchange(p.hears, nullptr));
        tell_all();
      }
    }
    std::unique_lock lock(e_.mutex_);
    if (!e_.queue_.empty() || e_.aborts_) return;
    if (e_.waiting_ > 0) {
      lock.unlock();
      sched_yield();  // Others may have to run for this to end.
    } else {
      // Nobody waits: this core is the computation's, and every look takes it away for a while.
      pause_ = std::clamp(2 * pause_, kShortestPause, kLongestPause);
      e_.work_.wait_for(lock, pause_);
    }
  }

  void end_all() {
    for_peers([&](int r, Peer& p) {
      for (void** m : {&p.bye, &p.hears}) {
        if (*m) transport_->cancel(std::exchange(*m, nullptr));
      }
      const Piece piece{&bye_, 1};
      p.bye = transport_->send(&piece, 1, r, kByeTag);
      if (!p.bye || !transport_->start(p.bye)) return;
      // One byte is on its way at once, or its receiver is gone: then the message stays as it is.
      int sent = 0;
      for (int i = 0; i < 1000 && sent == 0; ++i) {
        if ((sent = transport_->test(p.bye)) == 0) sched_yield();
      }
      if (sent > 0) transport_->release(std::exchange(p.bye, nullptr));
    });
    if (e_.broken_.empty()) return transport_->finish();
    // The others have heard and end as well, or the launcher ends them. All who can finish before:
    // where ranks abort while one waits in MPI_Finalize, Open MPI 4.1's launcher crashes or hangs.
    std::fflush(nullptr);
    std::thread([] {
      std::this_thread::sleep_for(std::chrono::seconds(5));
      std::_Exit(1);
    }).detach();
    transport_->finish();
    std::_Exit(1);
  }

  Exchange& e_;
  const Transport* transport_ = nullptr;
  std::vector<std::shared_ptr<Job>> active_, ended_;
  std::vector<Peer> peers_;  // By rank.
  double ends_since_ = 0;    // Nothing else is computed.
  std::string own_state_;
  double told_at_ = 0;                  // When this rank has.
  double counted_to_ = 0;               // Seconds of under_way_ns_.
  std::chrono::microseconds pause_{0};  // Before the next look.
  char bye_ = 0;
};

void Exchange::run_thread() {
  static auto& thread = *new Thread(*this);  // For ever, as messages to it may be under way.
  id_ = std::this_thread::get_id();
  try {
    thread.join();
  } catch (...) {
    return joined_.set_exception(std::current_exception());
  }
  joined_.set_value();
  thread.serve();
}

}  // namespace brrr::dist
