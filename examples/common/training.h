#pragma once
// What the training programs share: options, the loop, what they print and keep of a run.

#include <brrr/brrr.h>

#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "examples/common/options.h"
#include "tests/bench/measure/timing.h"

namespace examples {

struct TrainingOptions : CommandLine {
  using CommandLine::CommandLine;
  std::string mode = "graph", device = "cpu", checkpoint, loss_csv, log, kernels;
  std::string shard = "none";
  int64_t steps = 0, batch = 0, accumulate = 1, seed = 1;
  int64_t stop_at = 0, save_every = 0, eval_every = 500, log_every = 0, verify_every = 0;
  double lr = 0;
  bool explain = false;

  int64_t end() const { return stop_at > 0 ? std::min(stop_at, steps) : steps; }
  brrr::Mode step_mode() const;
  /// Backward passes of a step, of all processes: what a checkpoint calls `accumulate`.
  int64_t passes() const { return accumulate * brrr::dist::size(); }
  /// Throws where a step's batch is a slip of the pen, or has no kernels to write.
  void check_step() const;
  /// A slip of the pen must not fill the memory for minutes before it fails: throws where training
  /// so many parameters, which are what `sizes` says, takes more than this machine has.
  static void check_memory(const std::string& sizes, double parameters);
  brrr::dist::DataParallelOptions parallel() const {
    return {.accumulate = accumulate,
            .shard_optimizer = shard != "none",
            .shard_gradients = shard == "gradients"};
  }
  /// kept(), as a checkpoint keeps it.
  brrr::Metadata to_save() const;
  void adapt(brrr::Metadata& saved) const override;

 protected:
  void add_place();
  void add_steps(const std::string& what, int64_t least);
  void add_saving(const std::string& name);
  void add_batch(const std::string& what);
};

/// Losses as they come, and what the first process writes of a run: --loss-csv and --log. Losses
/// are read only when a line is printed, or there are many, so that no step waits.
class RunLog : brrr::NotCopied {
 public:
  /// Of the steps after `first`; of a run that goes on the files keep what they say of those
  /// before.
  RunLog(const TrainingOptions& o, int64_t first);
  ~RunLog();
  void add(const brrr::Tensor& loss);
  double read();
  /// A line of --log.
  void write(const std::string& line);
  /// All so far is in the files, whatever comes; throws if something could not be written.
  void flush();
  /// Of the first loss that is not finite: ", on rank 1", where there are several.
  const std::string& where() const { return where_; }

 private:
  const TrainingOptions& options_;
  std::string where_;
  std::ofstream losses_, lines_;  // Not open: nothing is written.
  std::vector<brrr::Tensor> pending_;
  double last_ = 0;
  int64_t next_;
};

/// Steps per second without the time spent on tests, checkpoints and compiling.
struct Pace {
  double seconds = 0;
  int64_t steps = 0;
  double units = 0;  ///< That the steps took in.
  double rate() const { return seconds > 0 ? static_cast<double>(steps) / seconds : 0; }
  double unit_rate() const { return seconds > 0 ? units / seconds : 0; }
  double step_ms() const { return steps > 0 ? 1e3 * seconds / static_cast<double>(steps) : 0; }
  Pace operator-(const Pace& o) const {
    return {std::max(0.0, seconds - o.seconds), steps - o.steps, units - o.units};
  }
};

/// What is said of a run every now and then, on the screen and in --log.
struct Progress {
  int64_t step;
  double loss;
  Pace pace;         ///< Since the last time.
  double eta_s = 0;  ///< To the end of the run; 0: this is it, or nothing is known yet.
  std::optional<double> tested = {};  ///< The test's figure, if it was time for one.
};

/// One line that says how far a run is: rewritten in place on a terminal, else printed now and
/// then.
class ProgressLine : brrr::NotCopied {
 public:
  /// Steps from `first` to `total`.
  ProgressLine(int64_t first, int64_t total);
  ~ProgressLine();

  /// After step `at`, with the figures to show beside it. `milestone` lines stay on the screen and
  /// are all that is printed where there is no terminal.
  void show(int64_t at, const std::string& figures, bool milestone);
  bool on_terminal() const { return terminal_; }
  /// After step `at`, by the time that the steps so far took; 0 after the last and the first.
  double seconds_left(int64_t at) const;

 private:
  std::string remaining(int64_t at) const;
  int64_t first_, total_;
  bool terminal_, open_ = false;
  brrr::bench::Clock::time_point begin_ = brrr::bench::Clock::now();
};

/// A run that goes from one step to the next.
class Training {
 public:
  virtual ~Training() = default;
  /// From the present step to the last: steps, lines, tests, checkpoints, the summary. The first
  /// Ctrl-C, or want of a reader for the lines, ends it after the current step, with its
  /// checkpoint; the second kills. What main returns.
  int train();

  brrr::Device device = brrr::kCPU;
  std::unique_ptr<brrr::optim::Optimizer> optimizer;
  std::unique_ptr<brrr::dist::DataParallel> parallel;
  std::unique_ptr<brrr::optim::Schedule> schedule;
  std::unique_ptr<brrr::optim::GradScaler> scaler;  ///< With float16 only.
  int64_t step = 0;                                 ///< Steps made.

 protected:
  Training(const TrainingOptions& o, const brrr::StepOptions& step);
  /// Checkpoints hold these and the run's own parts. Takes them from --resume, or the weights from
  /// --init, if either is given, and says so.
  void restore(brrr::models::Module& model, brrr::Stateful* data);
  /// Of a checkpoint beside the options.
  virtual brrr::Metadata notes() const { return {}; }
  /// Of a part of a batch, on the device.
  virtual brrr::Tensor loss_of(const brrr::Tensor& x, const brrr::Tensor& y) = 0;
  /// The gradients of the mean loss over all processes, whose part of a batch is x, in --accumulate
  /// passes. Returns that loss; of several processes also what each has, after it.
  brrr::Tensor add_gradients(const brrr::Tensor& x, const brrr::Tensor& y);
  /// A step: its loss, and what else is to be looked at.
  virtual std::vector<brrr::Tensor> training_step(const brrr::Tensor& x, const brrr::Tensor& y) = 0;
  /// The next one, whose loss goes to `log`. Returns it if it is to be looked at; throws if it is
  /// not finite.
  virtual double advance(RunLog& log, bool look) = 0;
  /// The last loss, of that step; throws if it is not finite: the run has gone wrong.
  double finite_loss(RunLog& log, int64_t at) const;
  /// The model's first bad tensor, in words; a call of all processes.
  std::string first_bad() const;
  /// The figure that tests give, and how it is called and written.
  virtual double test() = 0;
  struct Unit {
    const char* name;    ///< "tokens"
    double a_step;       ///< How many of them the last step took in.
    const char* tested;  ///< "validation"
    const char* form;    ///< "{:.4f}"
  };
  virtual Unit unit() const = 0;
  /// Of products: the peak that a share is of.
  virtual brrr::DType compute_dtype() const { return brrr::kFloat32; }
  /// The last test, as a line of the summary.
  virtual std::string result() = 0;
  /// Taken from the data so far.
  virtual int64_t batches() const = 0;
  /// Of what it trains on: all processes must have the same.
  virtual uint64_t data_hash() const = 0;

  /// training_step().
  brrr::Step<std::function<std::vector<brrr::Tensor>(const brrr::Tensor&, const brrr::Tensor&)>>
      step_;

 private:
  int run();
  void save(RunLog& log);
  double one_step(RunLog& log, bool look);
  double watched_step(RunLog& log, bool look);
  std::string text_of(const Progress& now) const;
  std::string json_of(const Progress& now) const;
  std::string summary() const;
  std::string kept_line() const;

  const TrainingOptions& options_;
  brrr::TrainingState parts_;
  Pace pace_;                     // Without what was done once.
  int looks_ = 0;                 // Steps that have been looked at so far,
  brrr::TimeSplit split_;         // what they took,
  double flops_ = 0, bytes_ = 0;  // and what one of them did.
  double peak_gflops_ = 0;        // Known once all have been.
};

/// Says in one number that tensors have the same bits: FNV-1a (Fowler, Noll and Vo) over their
/// comparable_bytes(), one after the other.
uint64_t checksum(const std::vector<brrr::Tensor>& tensors);

/// A NaN without its sign, which the modes need not agree on.
double plain(double v);

/// Seconds that a step has taken once, to record and build its kernels.
inline double once_seconds(const brrr::StepStats& s) {
  return s.record_seconds + s.fuse_seconds + s.plan_seconds + s.build_seconds + s.capture_seconds;
}

}  // namespace examples
