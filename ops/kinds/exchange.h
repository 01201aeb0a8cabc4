#pragma once
// Collectives between the processes of a run: a thread of their own sends and receives while the
// others compute. Sums are taken in rank order, so that every transport gives the same bits.

#include <atomic>
#include <functional>
#include <memory>
#include <string>
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
  /// Elements [begin, end).
  std::vector<Span> part(int64_t begin, int64_t end) const;
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

/// One collective. Its stages follow one another when all messages of the last have come and gone;
/// those of the peers have the same. It may be had many times.
class Job {
 public:
  /// `what` says the call, in messages: "all_reduce of float32[4, 3]". Messages of jobs that may be
  /// under way together differ in `tag`.
  Job(std::string what, int tag) : what_(std::move(what)), tag_(tag) {}
  virtual ~Job() = default;
  const std::string& what() const { return what_; }
  int tag() const { return tag_; }
  /// It begins when that says true: its thread asks again and again.
  void begin_when(std::function<bool()> ready) { ready_ = std::move(ready); }
  /// Who waits for it has no limit: a peer that is alive may have much to do before.
  void be_patient() { patient_ = true; }

 protected:
  /// Declares the messages of that stage, by send() and receive(); false: there is none. The first
  /// time, and after forget().
  virtual bool prepare(int stage) = 0;
  /// What is computed before that stage's messages start; also for the one after the last.
  virtual void compute(int) {}
  void send(int peer, const std::vector<Span>& spans, DType dtype);
  void receive(int peer, const std::vector<Span>& spans, DType dtype);
  /// Its messages are others from now on.
  void forget() { changed_ = true; }
  void set_what(std::string what) { what_ = std::move(what); }

 private:
  friend class Exchange;
  static constexpr int kCalls = -1;  // The stage before all others, if calls are compared.
  struct Message {
    void* request;
    int peer, stage;
    size_t sent;  // Bytes; 0: it is received.
    bool under_way;
  };
  void declare(bool sends, int peer, const Piece* pieces, int n);

  std::string what_;
  int tag_, stage_ = 0;
  std::function<bool()> ready_;
  int declared_ = 0;    // Stages whose messages are there; the next one's are declared.
  bool whole_ = false;  // Those are all.
  bool changed_ = false;
  bool patient_ = false;
  std::vector<Message> messages_;
  size_t under_way_ = 0;
  std::vector<std::string> calls_;  // What the peers say that they call.
  double began_ = 0;
  std::atomic<double> waited_since_{0};
  std::atomic<bool> done_{false};
  std::string failure_;
};

/// A job whose messages are one stage; nothing is done where there are no elements.
class OneStage final : public Job {
 public:
  using Part = std::function<void(OneStage&)>;
  OneStage(std::string what, int tag, bool any, Part messages, Part before = {}, Part after = {})
      : Job(std::move(what), tag),
        any_(any),
        messages_(std::move(messages)),
        compute_{std::move(before), std::move(after)} {}
  using Job::receive;
  using Job::send;

 private:
  bool prepare(int stage) override {
    if (stage > 0 || !any_) return false;
    messages_(*this);
    return true;
  }
  void compute(int stage) override {
    if (any_ && compute_[stage]) compute_[stage](*this);
  }
  bool any_;
  Part messages_, compute_[2];
};

/// Whom this process belongs to, and the thread that talks to the others.
class Exchange {
 public:
  /// Of this process: begun by dist::init() or the first collective.
  static Exchange& get();
  int rank() const { return transport_ ? transport_->rank : 0; }
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
  /// All three, one after the other.
  void run(const std::shared_ptr<Job>& job);
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
  double limit() const;
  /// Whether ranks tell each other what they call (BRRR_DIST_CHECK).
  bool checks() const;

 private:
  Exchange();
  ~Exchange() = delete;  // The thread outlives main.
  struct Thread;
  friend class Job;

  const Transport* transport_ = nullptr;
  Thread* thread_ = nullptr;
};

/// What ranks have sent of one shard, dense: one share of the first rank, `passes` of the others.
class Shares {
 public:
  void resize(int ranks, int passes, int64_t n, DType dtype);
  /// All of a rank's, one after the other.
  Span of(int rank);
  /// The sum of all in their order, where `own` are this rank's shares: it goes to the last.
  void sum(const std::vector<std::vector<Span>>& own, int rank);

 private:
  int shares_of(int rank) const { return rank == 0 ? 1 : passes_; }
  int first_of(int rank) const { return rank == 0 ? 0 : 1 + (rank - 1) * passes_; }
  int ranks_ = 0, passes_ = 1;
  int64_t n_ = 0;
  DType dtype_ = kFloat32;
  std::vector<char> bytes_, block_;
};

/// The halves of an all_reduce: the sum of its shard to each rank, and each rank's shard to all.
enum class Halves { Both, Sum, Share };

/// Each rank's share is summed in rank order by that rank and sent to all: the bytes of a ring,
/// 2 (N - 1) / N of the row. In place. It may begin again, with another row.
class AllReduceJob final : public Job {
 public:
  AllReduceJob(std::string what, int tag, Halves halves = Halves::Both)
      : Job(std::move(what), tag), halves_(halves) {}
  void set_row(Row row) { set_rows({std::move(row)}, 1); }
  /// Ranks but the first have `passes` rows of one size each, which are summed one after the other
  /// where a rank's turn comes; the first has one. The sum goes to the last.
  void set_rows(std::vector<Row> rows, int passes);
  using Job::set_what;
  Halves halves() const { return halves_; }

 private:
  bool prepare(int stage) override;
  void compute(int stage) override;
  void prepare_sum();
  void prepare_share();
  int sum_at() const { return halves_ == Halves::Share ? -1 : 0; }

  Halves halves_;
  std::vector<Row> rows_;
  int passes_ = 1;
  std::vector<std::vector<Span>> own_;  // This rank's shard of each row.
  Shares shares_;
};

/// Rank r's `mine` (of `size` elements, dense) to place r of `all` on every rank.
std::shared_ptr<Job> all_gather_job(std::string what, int tag, Span mine, char* all, DType dtype);
/// The sum over ranks of part r of `all`, on rank r, in `mine`.
std::shared_ptr<Job> reduce_scatter_job(std::string what, int tag, Span mine, char* all,
                                        DType dtype);
/// Root's values on every rank, in place.
std::shared_ptr<Job> broadcast_job(std::string what, int tag, Span values, DType dtype, int root);

/// Rank 0 does it, however long that takes; the others wait. If it throws, all throw.
void on_first_rank(const std::string& what, const std::function<void()>& f);

}  // namespace brrr::dist
