#pragma once
// Shared by the training programs: options, the training loop, progress output and checkpoints.

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
  /// Backward passes per step of all processes; a checkpoint stores this as `accumulate`.
  int64_t passes() const { return accumulate * brrr::dist::size(); }
  /// Throws if a step's batch is absurdly large, or if --kernels is given in eager mode.
  void check_step() const;
  /// Throws if training this number of parameters needs more memory than the machine has, so that a
  /// typo does not fill the memory for minutes first. `sizes` names the options in the message.
  static void check_memory(const std::string& sizes, double parameters);
  brrr::dist::DataParallelOptions parallel() const {
    return {.accumulate = accumulate,
            .shard_optimizer = shard != "none",
            .shard_gradients = shard == "gradients"};
  }
  /// saved_options(), as a checkpoint stores it.
  brrr::Metadata to_save() const;
  void adapt(brrr::Metadata& saved) const override;

 protected:
  void add_place();
  void add_steps(const std::string& what, int64_t least);
  void add_saving(const std::string& name);
  void add_batch(const std::string& what);
};

/// Collects losses and writes, on rank 0, --loss-csv and --log. Losses are read from the device
/// only when a line is printed, or when many are pending, so that steps need not wait.
class RunLog : brrr::NotCopied {
 public:
  /// Logs the steps after `first`. In a resumed run the files keep their lines of the steps up to
  /// it.
  RunLog(const TrainingOptions& o, int64_t first);
  ~RunLog();
  void add(const brrr::Tensor& loss);
  double read();
  /// A line of --log.
  void write(const std::string& line);
  /// Writes everything so far to the files; throws if that fails.
  void flush();
  /// The ranks of the first non-finite loss, as ", on rank 1"; empty with a single process.
  const std::string& where() const { return where_; }

 private:
  const TrainingOptions& options_;
  std::string where_;
  std::ofstream losses_, lines_;  // Not open: nothing is written.
  std::vector<brrr::Tensor> pending_;
  double last_ = 0;
  int64_t next_;
};

/// Training speed, excluding the time for tests, checkpoints and compiling.
struct Pace {
  double seconds = 0;
  int64_t steps = 0;
  double units = 0;  ///< Tokens or images processed.
  double rate() const { return seconds > 0 ? static_cast<double>(steps) / seconds : 0; }
  double unit_rate() const { return seconds > 0 ? units / seconds : 0; }
  double step_ms() const { return steps > 0 ? 1e3 * seconds / static_cast<double>(steps) : 0; }
  Pace operator-(const Pace& o) const {
    return {std::max(0.0, seconds - o.seconds), steps - o.steps, units - o.units};
  }
};

/// A progress report, for the screen and --log.
struct Progress {
  int64_t step;
  double loss;
  Pace pace;                          ///< Since the last report.
  double eta_s = 0;                   ///< Seconds to the end; 0: at the end, or not known yet.
  std::optional<double> tested = {};  ///< The test's figure, if this step was tested.
};

/// A progress line: rewritten in place on a terminal, otherwise printed at milestones only.
class ProgressLine : brrr::NotCopied {
 public:
  /// Steps from `first` to `total`.
  ProgressLine(int64_t first, int64_t total);
  ~ProgressLine();

  /// Shows step `at` with `figures`. `milestone` lines stay on the screen; without a terminal only
  /// they are printed.
  void show(int64_t at, const std::string& figures, bool milestone);
  bool on_terminal() const { return terminal_; }
  /// Estimated from the mean step time so far; 0 if there is none yet, and after the last step.
  double seconds_left(int64_t at) const;

 private:
  std::string remaining(int64_t at) const;
  int64_t first_, total_;
  bool terminal_, open_ = false;
  brrr::bench::Clock::time_point begin_ = brrr::bench::Clock::now();
};

/// The training loop.
class Training {
 public:
  virtual ~Training() = default;
  /// Runs from the current step to the last: steps, progress lines, tests, checkpoints, summary.
  /// The first Ctrl-C, or a closed standard output, ends it after the current step, with a
  /// checkpoint; the second kills. Returns main's exit status.
  int train();

  brrr::Device device = brrr::kCPU;
  std::unique_ptr<brrr::optim::Optimizer> optimizer;
  std::unique_ptr<brrr::dist::DataParallel> parallel;
  std::unique_ptr<brrr::optim::Schedule> schedule;
  std::unique_ptr<brrr::optim::GradScaler> scaler;  ///< With float16 only.
  int64_t step = 0;                                 ///< Completed steps.

 protected:
  Training(const TrainingOptions& o, const brrr::StepOptions& step);
  /// Sets the parts that checkpoints hold: these and the run's own. Loads them from --resume, or
  /// only the weights from --init, if either is given, and prints this.
  void restore(brrr::models::Module& model, brrr::Stateful* data);
  /// A checkpoint's metadata in addition to the options.
  virtual brrr::Metadata notes() const { return {}; }
  /// The loss of a part of a batch; on the device.
  virtual brrr::Tensor loss_of(const brrr::Tensor& x, const brrr::Tensor& y) = 0;
  /// Computes the gradients of the mean loss over all processes in --accumulate passes; x is this
  /// process's part of the batch. Returns the mean loss, with several processes followed by each
  /// one's own.
  brrr::Tensor add_gradients(const brrr::Tensor& x, const brrr::Tensor& y);
  /// The function of a step. Returns the loss, and further tensors for advance() to check.
  virtual std::vector<brrr::Tensor> training_step(const brrr::Tensor& x, const brrr::Tensor& y) = 0;
  /// Runs the next step and logs its loss. With `look` returns the loss, and throws if it is not
  /// finite.
  virtual double advance(RunLog& log, bool look) = 0;
  /// The latest loss, that of step `at`; throws if it is not finite.
  double finite_loss(RunLog& log, int64_t at) const;
  /// Describes the model's first non-finite tensor; a collective call.
  std::string describe_nonfinite() const;
  /// Runs a test and returns its figure.
  virtual double test() = 0;
  struct Unit {
    const char* name;    ///< "tokens"
    double per_step;     ///< The number of them that the last step processed.
    const char* tested;  ///< "validation": the name of the test's figure.
    const char* form;    ///< "{:.4f}": its format.
  };
  virtual Unit unit() const = 0;
  /// The dtype of matrix products, whose peak shares refer to.
  virtual brrr::DType compute_dtype() const { return brrr::kFloat32; }
  /// Runs the last test; returns a line of the summary.
  virtual std::string result() = 0;
  /// The number of batches taken from the data so far.
  virtual int64_t batches() const = 0;
  /// A hash of the training data, which must be equal in all processes.
  virtual uint64_t data_hash() const = 0;

  /// Runs training_step().
  brrr::Step<std::function<std::vector<brrr::Tensor>(const brrr::Tensor&, const brrr::Tensor&)>>
      step_;

 private:
  int run();
  void save(RunLog& log);
  double one_step(RunLog& log, bool look);
  double profiled_step(RunLog& log, bool look);
  std::string text_of(const Progress& now) const;
  std::string json_of(const Progress& now) const;
  std::string summary() const;
  std::string sharding_line() const;

  const TrainingOptions& options_;
  brrr::TrainingState parts_;
  Pace pace_;                     // Without one-time costs and profiled steps.
  int profiled_steps_ = 0;        // Steps profiled so far.
  brrr::TimeSplit split_;         // Their total time.
  double flops_ = 0, bytes_ = 0;  // Their totals; per step once all are profiled.
  double peak_gflops_ = 0;        // Set once all are profiled.
};

/// A hash by which to compare tensors bit for bit: FNV-1a (Fowler, Noll and Vo) over their
/// comparable_bytes(), one after the other.
uint64_t checksum(const std::vector<brrr::Tensor>& tensors);

/// Replaces any NaN by the positive quiet NaN: the modes may differ in a NaN's sign.
double plain(double v);

/// A step's one-time costs in seconds: recording, planning and building its kernels.
inline double once_seconds(const brrr::StepStats& s) {
  return s.record_seconds + s.fuse_seconds + s.plan_seconds + s.build_seconds + s.capture_seconds;
}

}  // namespace examples
