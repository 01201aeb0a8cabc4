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

constexpr int kReportTag = 0, kByeTag = 1, kSettingsTag = 2;
constexpr size_t kCallBytes = 256;    // For the description of a call.
constexpr double kAnswerSeconds = 1;  // The longest that a live peer takes to answer.
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
      p.report.resize(kCallBytes);
      p.bye = receive({&bye_, 1}, kByeTag);
      p.report_in = receive({p.report.data(), kCallBytes}, kReportTag);
    });
    share_settings();
  }

  void serve() {
    {
      // How many jobs are active at once depends on timing; replays must never allocate.
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
        // From now on the limit runs for all that is in flight, even if no caller waits for it.
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
    void* bye = nullptr;  // A receive that completes when that rank ends.
    bool gone = false;
    void* report_in = nullptr;  // A receive of the peer's report: once a wait exceeds the limit,
    std::string report;         // all ranks report which collectives they are in.
  };
  // f(rank, peer) for all others.
  template <class F> void for_peers(const F& f) {
    for (size_t r = 0; r < peers_.size(); ++r) {
      if (static_cast<int>(r) != transport_->rank) f(static_cast<int>(r), peers_[r]);
    }
  }

  // Whether all messages of the job's stage are complete.
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
      BRRR_CHECK(transport_->start(m.request), "{}: cannot start a message to or from rank {}: {}",
                 job.what, m.peer, transport_->error());
      m.under_way = true;
      ++job.under_way_;
      e_.bytes_ += m.sent;
    }
  }

  // Releases its messages, none of which is in flight; with `calls` only those that compare calls.
  void release(Job& job, bool calls = false) {
    std::erase_if(job.messages_, [&](const Job::Message& m) {
      if (calls && m.stage != Job::kCalls) return false;
      transport_->release(m.request);
      return true;
    });
  }

  // With BRRR_DIST_CHECK the peers first exchange descriptions of their calls.
  void exchange_calls(Job& job) {
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
      if (at == Job::kCalls && e_.check_) exchange_calls(job);
      if (at == 1 && e_.check_) check_calls(job);
      if (at == 2) job.compute();
      if (at == 1 + static_cast<int>(job.plan_.stages.size())) return false;
      start_messages(job, at);
    } while (job.under_way_ == 0);
    return true;
  }

  void finish_job(Job& job) {
    // Time during which several jobs are in flight counts once.
    const double now = now_s();
    e_.under_way_ns_ += static_cast<int64_t>((now - std::max(job.began_, counted_to_)) * 1e9);
    counted_to_ = now;
    ++e_.jobs_;
    // The last accesses: a waiting caller may start the job again.
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
      // Nothing else would report it any more.
      if (e_.broken_.empty() && ends_since_ > 0) e_.print_failure(why);
      if (e_.broken_.empty()) e_.broken_ = why;
    }
    finish_job(job);
  }

  // Reports to all others, once, which jobs this rank is in: a wait has exceeded the limit.
  void report_all() {
    if (reported_at_ > 0) return;
    reported_at_ = now_s();
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
      // Not waited for: the run is about to end.
      if (void* const m = transport_->send(&piece, 1, r, kReportTag)) transport_->start(m);
    });
  }

  // Throws if the messages that the job waits for will not come.
  void check_peers(const Job& job) {
    const double since = job.waited_since_ > 0 ? job.waited_since_.load() : ends_since_;
    const bool late = !job.patient && since > 0 && now_s() - since > e_.limit_s_;
    std::set<size_t> missing;
    for (const auto& m : job.messages_) {
      if (!m.under_way) continue;
      const auto peer = static_cast<size_t>(m.peer);
      BRRR_CHECK(!peers_[peer].gone, "{}: rank {} has ended its program", job.what, peer);
      if (late) missing.insert(peer);  // Only then: it allocates, and this runs at every poll.
    }
    if (!late) return;
    report_all();
    std::string awaited;
    for (const size_t r : missing) {
      const char* state = peers_[r].report.c_str();
      if (!*state && now_s() - reported_at_ < kAnswerSeconds) return;
      awaited += fmt::format("{}rank {}, which {}{}", awaited.empty() ? "" : "; ", r,
                             *state ? "is " : "", *state ? state : "does not answer");
    }
    brrr::fail("{}: waited {:.0f} s for {} ({}BRRR_DIST_LIMIT sets the seconds)", job.what,
               e_.limit_s_.load(), awaited.empty() ? "this rank's part" : awaited,
               e_.check_ ? "" : "BRRR_DIST_CHECK=1 compares the calls, ");
  }

  // Whether there was any progress.
  bool advance(Job& job) {
    try {
      if (job.stage_ == 0 && job.ready && !job.ready()) {
        // While this rank's GPU computes the limit does not run, unless the process ends.
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

  // Rank 0's limit and check apply to all ranks, which may not see its environment.
  void share_settings() {
    double settings[] = {e_.limit_s_, e_.check_ ? 1.0 : 0.0};
    const Piece piece{settings, sizeof settings};
    const bool first = transport_->rank == 0;
    for (int r = first ? 1 : 0; r < (first ? transport_->size : 1); ++r) {
      void* const m = (first ? transport_->send : transport_->receive)(&piece, 1, r, kSettingsTag);
      int state = m && transport_->start(m) ? 0 : -1;
      for (; state == 0; sched_yield()) state = transport_->test(m);
      if (m) transport_->release(m);
      BRRR_CHECK(state > 0, "dist: a message between ranks failed: {}", transport_->error());
    }
    e_.limit_s_ = settings[0];
    e_.check_ = settings[1] != 0;
  }

  void step() {
    bool moved = false;
    for (size_t k = 0; k < active_.size();) {
      const std::shared_ptr<Job> job = active_[k];
      moved |= advance(*job);
      if (k < active_.size() && active_[k] == job) ++k;  // Otherwise it is done.
    }
    if (!e_.broken_.empty()) {
      while (!active_.empty()) fail(*std::shared_ptr<Job>(active_.front()), e_.broken_);
    }
    if (moved) {
      pause_ = {};
      return;
    }
    for (Peer& p : peers_) {
      // Messages that it sent before may be in flight: only the next poll reports it missing.
      if (p.bye && transport_->test(p.bye)) {
        transport_->release(std::exchange(p.bye, nullptr));
        p.gone = true;
      }
      if (p.report_in && transport_->test(p.report_in)) {  // Answered by a report.
        transport_->release(std::exchange(p.report_in, nullptr));
        report_all();
      }
    }
    std::unique_lock lock(e_.mutex_);
    if (!e_.queue_.empty() || e_.aborts_) return;
    if (e_.waiting_ > 0) {
      lock.unlock();
      sched_yield();  // Others may need the core for this to complete.
    } else {
      // No caller waits: leave the core to the computation, which every poll interrupts.
      pause_ = std::clamp(2 * pause_, kShortestPause, kLongestPause);
      e_.work_.wait_for(lock, pause_);
    }
  }

  void end_all() {
    for_peers([&](int r, Peer& p) {
      for (void** m : {&p.bye, &p.report_in}) {
        if (*m) transport_->cancel(std::exchange(*m, nullptr));
      }
      const Piece piece{&bye_, 1};
      p.bye = transport_->send(&piece, 1, r, kByeTag);
      if (!p.bye || !transport_->start(p.bye)) return;
      // One byte is sent at once, unless its receiver is gone: then the message is left as it is.
      int sent = 0;
      for (int i = 0; i < 1000 && sent == 0; ++i) {
        if ((sent = transport_->test(p.bye)) == 0) sched_yield();
      }
      if (sent > 0) transport_->release(std::exchange(p.bye, nullptr));
    });
    if (e_.broken_.empty()) return transport_->finish();
    // The others were notified and end too, or the launcher ends them. All that can finish first:
    // if ranks abort while one waits in MPI_Finalize, Open MPI 4.1's launcher crashes or hangs.
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
  double ends_since_ = 0;    // When the process began to exit; 0: not yet.
  std::string own_state_;
  double reported_at_ = 0;              // When this rank reported.
  double counted_to_ = 0;               // The time up to which under_way_ns_ counts.
  std::chrono::microseconds pause_{0};  // Before the next poll.
  char bye_ = 0;
};

void Exchange::run_thread() {
  static auto& thread = *new Thread(*this);  // Never freed: messages to it may be in flight.
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
