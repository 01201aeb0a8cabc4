#pragma once
// The state that a step keeps between calls.

#include <atomic>
#include <memory>
#include <mutex>

#include "core/rng.h"
#include "graph/plan.h"
#include "graph/walker.h"

namespace brrr::graph {

inline constexpr int kAutoTrials = 20;  ///< Calls after which Mode::Auto keeps a mode.

/// A recording and the plans made from it.
struct Entry {
  Recording recording;
  std::unique_ptr<Plan> plan;
  std::atomic<const Plan*> built = nullptr;  ///< `plan`, readable without the mutex.
  std::unique_ptr<Plan> unfused;  ///< Runs op by op in planned memory until there is `plan`.
  std::string failure;            ///< Why the last build of a plan failed; "" if it did not.
  uint64_t calls = 0, replays = 0;
  uint64_t retry_at = 0;  ///< The call at which a failed build is retried.
  uint64_t turn = 1;      ///< The next replay's number since the last verified one.
  std::mutex mutex;       ///< A plan's operands are bound to one replay at a time.
  // Mode::Auto: the best time of either way, and how many trials there have been.
  double walk_seconds = 0, replay_seconds = 0;
  int trials = 0;
  bool prefers_eager() const { return trials == kAutoTrials && walk_seconds < replay_seconds; }
  /// An argument of the last call that ran the function, which those of a frozen call must match.
  struct Argument {
    bool defined = false;  ///< If not, nothing below is set.
    bool cut = false;      ///< View::Cut: eager mode refuses to write it.
    bool requires_grad = false;
    Device device = {};
    uint32_t external = kNone;  ///< kNone: the step does not use it.
    DType dtype = kFloat32;
    IntList sizes = {}, strides = {};
    uint32_t number = 0;  ///< Storage::number.
    int64_t offset = 0;
    int64_t base = 0;        ///< From its first element to the storage's first use by the step.
    uint32_t histories = 0;  ///< As in Captured: a captured tensor may share the storage.
    bool moves = false;      ///< Calls have passed different tensors: none of them is captured.
  };
  std::vector<Argument> arguments;
  /// Any other external: Storage::number, the element of the storage that the step first uses, and
  /// Storage::histories.
  struct Captured {
    uint32_t number = 0;
    int64_t base = 0;
    uint32_t histories = 0;
  };
  std::vector<Captured> captured;
};

/// The working state of a call; reused by the next one, so that a replay allocates nothing.
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
  Plan* plan = nullptr;           ///< The entry's plan after this call, or null; the entry owns it.
  bool transient = false;         ///< The entry is new and will not be kept.
};

/// What a frozen call uses instead of running the function.
struct Frozen {
  std::shared_ptr<Entry> entry;
  Effects effects;                ///< Bindings of arguments are null: each call binds its own.
  const char* refusal = nullptr;  ///< Why the step cannot be frozen; null if it can.
  bool grad_enabled = true;
  DType autocast = kFloat32;
  Device device = kCPU;   ///< The default device.
  uint64_t epoch = 0;     ///< settings_epoch().
  bool sets_rng = false;  ///< The step sets the random stream: a frozen call must find it
  RngState left = {};     ///< in the state in which the last call left it.
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
  void release_last_call(Session& s);
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
  static void check_foreign_writes(const Recording& r, const Pass& pass);
  void verify(Entry& e, Session& s);
  void run_unfused(Entry& e, Session& s, bool shared);
  void remember(const std::shared_ptr<Entry>& e, Session& s, const Tensor* const* args, size_t n);
  std::shared_ptr<Entry> play(Session& s, const Tensor* const* args, size_t n,
                              std::vector<Tensor>& results);

  StepOptions options_;
  std::mutex mutex_;                             // Guards everything below.
  std::vector<std::shared_ptr<Entry>> entries_;  // Most recently used first.
  std::vector<std::unique_ptr<Session>> sessions_;
  StepStats stats_;
  double cached_seconds_ = 0;     // The share of build_seconds served by the disk cache.
  std::vector<std::string> log_;  // Differences and fallbacks, without repeats.
  Frozen last_;                   // From the last call, for freeze().
  std::atomic<bool> is_frozen_ = false;
  std::vector<std::pair<int, Tensor>> inputs_;
  size_t arguments_ = 0;        // The most that a call has passed so far.
  int64_t recording_debt_ = 0;  // Grows by 9 a recording, falls by 1 a call; not below 0.
};

}  // namespace brrr::graph
