#pragma once
// What a step keeps between calls.

#include <atomic>
#include <memory>
#include <mutex>

#include "core/rng.h"
#include "graph/plan.h"
#include "graph/walker.h"

namespace brrr::graph {

inline constexpr int kAutoTrials = 20;  ///< Calls after which Mode::Auto keeps a mode.

/// A recording and what has been made of it.
struct Entry {
  Recording recording;
  std::unique_ptr<Plan> plan;
  std::atomic<const Plan*> built = nullptr;  ///< The same, for who does not hold the mutex.
  std::unique_ptr<Plan> unfused;  ///< Serves until there is a plan, in memory as well planned.
  std::string failure;            ///< Why there is no plan although there should be one.
  uint64_t calls = 0, replays = 0;
  uint64_t retry_at = 0;  ///< The call at which a failed build is tried again.
  uint64_t turn = 1;      ///< Of the next replay, counted from the last one that was verified.
  std::mutex mutex;       ///< A plan's operands are bound for one replay at a time.
  // Mode::Auto: trials of both ways, and what they decide.
  double walk_seconds = 0, replay_seconds = 0;
  int trials = 0;
  bool prefers_walk() const { return trials == kAutoTrials && walk_seconds < replay_seconds; }
  /// Of the last call that ran the function: what the next one's have to be like to be frozen.
  struct Argument {
    bool defined = false;  ///< Else nothing of the following is set.
    bool cut = false;      ///< Eager mode refuses to write it.
    bool requires_grad = false;
    Device device = {};
    uint32_t external = kNone;  ///< kNone: the step does not use it.
    DType dtype = kFloat32;
    IntList sizes = {}, strides = {};
    uint32_t number = 0;  ///< Its storage's.
    int64_t offset = 0;
    int64_t base = 0;        ///< From its first element to where the step first uses the storage.
    uint32_t histories = 0;  ///< As of Captured, since something captured may be the same one.
    bool moves = false;      ///< Another tensor has been seen there: nothing captured is.
  };
  std::vector<Argument> arguments;
  /// The same of everything else from outside: its storage's number, where it begins there, and
  /// the storage's histories.
  struct Captured {
    uint32_t number = 0;
    int64_t base = 0;
    uint32_t histories = 0;
  };
  std::vector<Captured> captured;
};

/// What one call needs; kept for the next, so that a replay allocates nothing.
struct Session {
  Pass pass;
  bool watch = false;  ///< The call may be verified.
  ResultList results;
  std::vector<std::shared_ptr<Entry>> entries;
  std::vector<const Recording*> candidates;
  std::vector<Storage*> survivors;
  std::vector<Replaced> replaced;
  std::vector<TensorImpl*> seen;  ///< Scratch.
  std::vector<Binding> bindings;  ///< Scratch.
  Plan* plan = nullptr;           ///< The entry's after this call, if it has one: it lives as long.
  bool transient = false;         ///< The entry is new and not kept.
};

/// Everything a call needs when the function is not run.
struct Frozen {
  std::shared_ptr<Entry> entry;
  Effects effects;                ///< Bindings of arguments are null: they are bound anew.
  const char* refusal = nullptr;  ///< Why it cannot be frozen; null if it can.
  bool grad_enabled = true;
  DType autocast = kFloat32;
  Device device = kCPU;  ///< Where tensors were made, by default.
  uint64_t epoch = 0;
  bool sets_rng = false;  ///< The random stream, which
  RngState left = {};     ///< a call must find as the last one left it.
};

class StepCore final : public StepBase {
 public:
  explicit StepCore(StepOptions options);

  std::vector<Tensor>* run(const Tensor* const* args, size_t n, void (*body)(void*, ResultList&),
                           void* ctx) override;
  void freeze() override;
  bool is_frozen() const override { return is_frozen_; }
  StepStats stats() override;
  std::string explain() override;
  std::string dot() override;
  std::string source() override;
  Tensor input(int index, const IntList& sizes, DType dtype, Device device) override;
  const StepOptions& options() const override { return options_; }

 private:
  void forget_last(Session& s);
  std::unique_ptr<Session> open_session(size_t arguments);
  void close_session(std::unique_ptr<Session> s);
  std::shared_ptr<Entry> find_entry(Session& s, double seconds);
  void execute(Entry& e, Session& s);
  std::vector<std::shared_ptr<Entry>> all_entries();
  std::shared_ptr<Entry> last_entry(const char* what);
  bool choose_plan(Entry& e, const Session& s);
  void build(Entry& e, const Session& s);
  bool log(const std::string& line);
  void warn(const std::string& line);
  void fall_back(const std::string& why);
  bool verification_due(const Entry& e) const {
    return options_.verify_every && e.turn >= static_cast<uint64_t>(options_.verify_every);
  }
  bool agree_to_verify(const Recording& r, bool due, bool by_plan) const;
  static void check_unwritten(const Recording& r, const Pass& pass);
  void verify(Entry& e, Session& s);
  void walk_ops(Entry& e, Session& s, bool shared);
  void remember(const std::shared_ptr<Entry>& e, Session& s, const Tensor* const* args, size_t n);
  std::shared_ptr<Entry> play(Session& s, const Tensor* const* args, size_t n,
                              std::vector<Tensor>& results);

  StepOptions options_;
  std::mutex mutex_;                             // Guards everything below.
  std::vector<std::shared_ptr<Entry>> entries_;  // Most recently used first.
  std::vector<std::unique_ptr<Session>> sessions_;
  StepStats stats_;
  double cached_seconds_ = 0;     // Of its build_seconds those that found all on the disk.
  std::vector<std::string> log_;  // Differences and fallbacks, each once.
  Frozen last_;                   // Of the last call, for freeze().
  std::atomic<bool> is_frozen_ = false;
  std::vector<std::pair<int, Tensor>> inputs_;
  size_t arguments_ = 0;   // Of the calls so far, at most.
  int64_t new_calls_ = 0;  // 9 for each call that was recorded, less 1 for each call.
};

}  // namespace brrr::graph
