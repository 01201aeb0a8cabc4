#pragma once
// Collectives between the processes of a run: a thread of their own sends and receives while the
// others compute. Sums are taken in rank order, so that every transport gives the same bits.

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "core/dtype.h"
#include "core/transport.h"
#include "ops/dist.h"

namespace brrr::dist {

/// Elements in a row.
struct Span {
  char* at = nullptr;
  int64_t n = 0;
  bool operator==(const Span&) const = default;
};

/// Where the parts of one span end that belong to rank 0, 1, ..: size() + 1 numbers from 0 to n.
using Cuts = std::vector<int64_t>;

/// Spans seen as one long row of elements of a dtype, each of which belongs to a rank.
class Row {
 public:
  /// `cuts` are those of the spans; without them a rank has as many elements as another.
  Row(DType dtype, std::vector<Span> spans, std::vector<const Cuts*> cuts = {});
  int64_t size() const { return size_; }
  DType dtype() const { return dtype_; }
  int64_t item() const { return static_cast<int64_t>(itemsize(dtype_)); }
  const std::vector<Span>& spans() const { return spans_; }
  /// The same row in dense memory.
  Row moved(char* to) const;
  /// The part of a rank.
  std::vector<Span> shard(int rank, int ranks) const;
  static int64_t shard_begin(int64_t n, int rank, int ranks) { return n * rank / ranks; }

 private:
  DType dtype_;
  std::vector<Span> spans_;
  std::vector<const Cuts*> cuts_;
  int64_t size_ = 0;
};

/// The halves of an all_reduce: the sum of its shard to each rank, and each rank's shard to all. A
/// reduce_scatter is the first one alone, an all_gather and a broadcast are the second.
enum class Halves { Both, Sum, Share };

/// What this rank does for a sum over the ranks, or a half of it, wherever the rows lie. Each
/// rank's shard is summed in rank order by that rank and sent to all: the bytes of a ring,
/// 2 (N - 1) / N of the row.
struct SumPlan {
  struct Message {
    int peer;
    std::vector<Span> to, from;  // What the peer is sent; where what it sends goes.
  };
  /// to = from[0] + from[1] + .., n elements of each. `to` is one of them; from[0] may be written.
  struct Addition {
    char* to;
    std::vector<char*> from;
    int64_t n;
  };
  std::vector<std::vector<Message>> stages;  // Each after all messages of the one before.
  std::vector<Addition> additions;           // After the first stage.
};
/// Ranks but the first have `passes` rows of one size each, which are summed one after the other
/// where a rank's turn comes; the first has one. The sum goes to the last. `shares` gives memory
/// for so many elements, what others send of this rank's shard.
SumPlan plan_sum(const std::vector<Row>& rows, int passes, Halves halves,
                 const std::function<char*(int64_t)>& shares);

/// One collective in the host's memory, in place. Its stages follow one another when all messages
/// of the last have come and gone; those of the peers have the same. It may be had many times.
class Job {
 public:
  Job(std::string call, int t, Halves h) : what(std::move(call)), tag(t), halves(h) {}
  virtual ~Job() = default;
  std::string what;  ///< The call, in messages: "all_reduce of float32[4, 3]".
  const int tag;     ///< Messages of jobs that may be under way together differ in it.
  const Halves halves;
  /// It begins when that says true, if it is there: its thread asks again and again.
  std::function<bool()> ready;
  bool patient = false;  ///< It has no limit: a peer that is alive may have much to do before.
  /// As plan_sum() takes them; also others, the next time.
  void set_rows(std::vector<Row> rows, int passes = 1);

 protected:
  /// What is computed after the first stage's messages.
  virtual void compute();

 private:
  friend class Exchange;
  static constexpr int kCalls = 0;  // The stage before all others; empty where none are compared.
  struct Message {
    void* request;
    int peer, stage;
    size_t sent;  // Bytes; 0: it is received.
    bool under_way;
  };
  void declare();
  void declare(int stage, bool sends, int peer, const std::vector<Span>& spans, size_t item = 1);

  int stage_ = 0;
  std::vector<Row> rows_;
  int passes_ = 1;
  SumPlan plan_;
  std::vector<char> shares_;
  bool changed_ = false;  // Its messages are others than those that are declared.
  std::vector<Message> messages_;
  size_t under_way_ = 0;
  std::vector<std::string> calls_;  // What the peers say that they call.
  double began_ = 0;
  std::atomic<double> waited_since_{0};
  std::atomic<bool> done_{false};
  std::string failure_;
};

/// Whom this process belongs to, and the thread that talks to the others.
class Exchange {
 public:
  /// Of this process: begun by dist::init() or the first collective.
  static Exchange& get();
  int rank() const { return transport_ ? transport_->rank : 0; }
  /// Whether this process was forked from one that has a rank: nobody exchanges for it.
  bool in_child() const { return process_ && getpid() != process_; }
  int size() const { return transport_ ? transport_->size : 1; }
  const Transport* transport() const { return transport_; }

  /// Begins; the memory that the job names must stay, and nobody else writes it.
  void start(std::shared_ptr<Job> job);
  /// Until the job is done; throws brrr::Error if it failed, or took longer than the limit.
  void wait(Job& job);
  /// Until nobody uses the job's memory any more, done or failed.
  void let_go(Job& job) noexcept;
  /// It will not be started again. Every job that has been started comes here.
  void retire(std::shared_ptr<Job> job);
  /// A tag for a job that all ranks begin in the same order.
  int next_tag();
  /// The first of so many tags in a row, for messages that may be under way with others; all ranks
  /// ask in the same order. They come back by return_tags().
  int reserve_tags(int n);
  void return_tags(int first, int n);
  /// Ends the run: says why, with the rank's number, on stderr.
  [[noreturn]] void abort(const std::string& why);

  Stats stats() const;
  /// How long wait() waits, 60 s to begin with.
  void set_limit(double seconds);
  double limit() const { return limit_s_; }
  /// Whether ranks tell each other what they call (BRRR_DIST_CHECK).
  bool checks() const { return check_; }

 private:
  Exchange() = default;
  ~Exchange() = delete;  // The thread outlives main.
  class Thread;
  void begin();
  void run_thread();
  void say(const std::string& why) const;

  // What both sides see under the mutex.
  const Transport* transport_ = nullptr;  // Null: alone.
  std::mutex mutex_;
  std::condition_variable work_, done_;
  std::vector<std::shared_ptr<Job>> queue_, retired_;
  std::vector<bool> reserved_;  // Tags, from the first.
  int waiting_ = 0;
  pid_t process_ = 0;  // Whose thread exchanges.
  bool finish_ = false, finished_ = false, aborts_ = false;
  std::string broken_;  // Why no collective can be had any more.
  std::promise<void> joined_;
  std::thread::id id_;
  std::atomic<uint64_t> bytes_{0}, jobs_{0};
  std::atomic<int64_t> under_way_ns_{0}, waited_ns_{0};

  std::atomic<double> limit_s_{60};
  std::atomic<bool> check_{false};
};

inline double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Cuts of n elements that belong to one rank: what all others get of it is a broadcast.
Cuts owned_by(int rank, int64_t n);
/// A sum over the ranks of a row in the host's memory, or a half of it, waited for; with `patience`
/// without a limit.
void exchange(std::string what, Row row, Halves halves, bool patience = false);
/// Each rank's part of the row to all.
inline void share(std::string what, Row row, bool patience = false) {
  exchange(std::move(what), std::move(row), Halves::Share, patience);
}

/// Rank 0 does it, however long that takes; the others wait. If it throws, all throw.
void on_first_rank(const std::string& what, const std::function<void()>& f);

}  // namespace brrr::dist
