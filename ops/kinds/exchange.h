#pragma once
// Collectives between the processes of a run. A thread of each sends and receives while its others
// compute. Sums are added up in rank order, so that every transport gives the same bits.

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

/// Contiguous elements.
struct Span {
  char* at = nullptr;
  int64_t n = 0;
  bool operator==(const Span&) const = default;
};

/// The parts of a span by rank: rank r has [cuts[r], cuts[r + 1]), size() + 1 numbers from 0 to n.
using Cuts = std::vector<int64_t>;

/// Spans seen as one long row of elements of a dtype, each of which belongs to a rank.
class Row {
 public:
  /// `cuts` are those of the spans; without them all ranks have equal parts.
  Row(DType dtype, std::vector<Span> spans, std::vector<const Cuts*> cuts = {});
  int64_t size() const { return size_; }
  DType dtype() const { return dtype_; }
  int64_t item() const { return static_cast<int64_t>(itemsize(dtype_)); }
  const std::vector<Span>& spans() const { return spans_; }
  /// The same row, packed into memory at `to`.
  Row moved(char* to) const;
  /// A rank's part.
  std::vector<Span> shard(int rank, int ranks) const;
  static int64_t shard_begin(int64_t n, int rank, int ranks) { return n * rank / ranks; }

 private:
  DType dtype_;
  std::vector<Span> spans_;
  std::vector<const Cuts*> cuts_;
  int64_t size_ = 0;
};

/// The halves of an all_reduce: Sum gives each rank the sum of its shard, Share sends each rank's
/// shard to all. A reduce_scatter is Sum alone, an all_gather and a broadcast are Share.
enum class Halves { Both, Sum, Share };

/// What this rank does for a sum over the ranks, or a half of it, in host or GPU memory. Each rank
/// sums its shard in rank order and sends it to all: the bytes of a ring, 2 (N - 1) / N of the row.
struct SumPlan {
  struct Message {
    int peer;
    std::vector<Span> to, from;  // What is sent to the peer; where its data goes.
  };
  /// to = from[0] + from[1] + .., n elements each. `to` is in `from`; from[0] may be overwritten.
  struct Addition {
    char* to;
    std::vector<char*> from;
    int64_t n;
  };
  std::vector<std::vector<Message>> stages;  // Each begins after all messages of the last.
  std::vector<Addition> additions;           // Computed after the first stage.
};
/// The first rank has one row, each other rank `passes` rows of the same size, which are added one
/// after the other at that rank's turn. The sum goes to the last row. `shares(n)` returns memory
/// for n elements: what the others send of this rank's shard.
SumPlan plan_sum(const std::vector<Row>& rows, int passes, Halves halves,
                 const std::function<char*(int64_t)>& shares);

/// One collective in host memory, in place. A stage begins when all messages of the last one are
/// complete; the peers' jobs have the same stages. A job may be started repeatedly.
class Job {
 public:
  Job(std::string call, int t, Halves h) : what(std::move(call)), tag(t), halves(h) {}
  virtual ~Job() = default;
  std::string what;  ///< The call, in messages: "all_reduce of float32[4, 3]".
  const int tag;     ///< Differs between jobs whose messages may be in flight together.
  const Halves halves;
  /// If set, the job begins once this returns true: its thread polls it.
  std::function<bool()> ready;
  bool patient = false;  ///< No time limit: a live peer may be busy for long before its call.
  /// Sets rows as plan_sum() takes them; they may change from one start to the next.
  void set_rows(std::vector<Row> rows, int passes = 1);

 protected:
  /// Runs after the first stage's messages.
  virtual void compute();

 private:
  friend class Exchange;
  static constexpr int kCalls = 0;  // The first stage, which compares calls; else it is empty.
  struct Message {
    void* request;
    int peer, stage;
    size_t sent;  // Bytes; 0: a receive.
    bool under_way;
  };
  void declare();
  void declare(int stage, bool sends, int peer, const std::vector<Span>& spans, size_t item = 1);

  int stage_ = 0;
  std::vector<Row> rows_;
  int passes_ = 1;
  SumPlan plan_;
  std::vector<char> shares_;
  bool changed_ = false;  // The declared messages are out of date.
  std::vector<Message> messages_;
  size_t under_way_ = 0;
  std::vector<std::string> calls_;  // What the peers report as their calls.
  double began_ = 0;
  std::atomic<double> waited_since_{0};
  std::atomic<bool> done_{false};
  std::string failure_;
};

/// This process's rank, and the thread that communicates with the other ranks.
class Exchange {
 public:
  /// The instance of this process, set up by dist::init() or the first collective.
  static Exchange& get();
  int rank() const { return transport_ ? transport_->rank : 0; }
  /// Whether this process was forked from one that has a rank: it has no exchange thread.
  bool in_child() const { return process_ && getpid() != process_; }
  int size() const { return transport_ ? transport_->size : 1; }
  const Transport* transport() const { return transport_; }

  /// Starts a job. Its memory must stay valid, and nothing else may write to it.
  void start(std::shared_ptr<Job> job);
  /// Waits until the job is done; throws brrr::Error if it failed or exceeded the limit.
  void wait(Job& job);
  /// Waits until the job no longer uses its memory, done or failed.
  void wait_until_unused(Job& job) noexcept;
  /// Releases a job that will not be started again. Required for every job that has been started.
  void retire(std::shared_ptr<Job> job);
  /// A tag for a job that all ranks begin in the same order.
  int next_tag();
  /// The first of n consecutive tags, for messages that may be in flight together with others; all
  /// ranks reserve in the same order. return_tags() gives them back.
  int reserve_tags(int n);
  void return_tags(int first, int n);
  /// Ends the run; prints the reason and the rank's number to stderr.
  [[noreturn]] void abort(const std::string& why);

  Stats stats() const;
  /// How long wait() waits; 60 s by default.
  void set_limit(double seconds);
  double limit() const { return limit_s_; }
  /// Whether ranks compare their calls (BRRR_DIST_CHECK).
  bool checks() const { return check_; }

 private:
  Exchange() = default;
  ~Exchange() = delete;  // The thread outlives main.
  class Thread;
  void begin();
  void run_thread();
  void print_failure(const std::string& why) const;

  // Shared with the thread, under the mutex.
  const Transport* transport_ = nullptr;  // Null: a single process.
  std::mutex mutex_;
  std::condition_variable work_, done_;
  std::vector<std::shared_ptr<Job>> queue_, retired_;
  std::vector<bool> reserved_;  // By tag, from kFirstTag on.
  int waiting_ = 0;
  pid_t process_ = 0;  // The one that owns the thread.
  bool finish_ = false, finished_ = false, aborts_ = false;
  std::string broken_;  // Why every further collective fails.
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

/// Cuts of n elements that all belong to one rank: to share them is a broadcast.
Cuts owned_by(int rank, int64_t n);
/// Sums a row in host memory over the ranks, or does a half of that, and waits; with `patience`
/// without a time limit.
void exchange(std::string what, Row row, Halves halves, bool patience = false);
/// Sends each rank's part of the row to all.
inline void share(std::string what, Row row, bool patience = false) {
  exchange(std::move(what), std::move(row), Halves::Share, patience);
}

/// Runs f on rank 0, without a time limit; the others wait. If it throws, all throw.
void on_first_rank(const std::string& what, const std::function<void()>& f);

}  // namespace brrr::dist
