// Trains a GPT on a text, eagerly or as a graph: the same code, the same bits.
#include <brrr/brrr.h>
#include <fmt/format.h>
#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <csignal>
#include <functional>
#include <stdexcept>

#include "examples/common/checksum.h"
#include "examples/common/gpt_run.h"
#include "examples/common/losses.h"
#include "examples/common/options.h"
#include "examples/common/progress.h"

using brrr::Tensor;
using namespace examples;

namespace {

using Clock = std::chrono::steady_clock;

std::atomic<bool> interrupted{false};

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

double peak_megabytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

/// The batch moves to the device inside the step: with what else a replay takes from the host.
Tensor loss_of(GptRun& run, const GptOptions& o, const Tensor& x, const Tensor& y) {
  const brrr::AutocastGuard guard(o.compute_dtype());
  return run.model->loss(x.to(run.device), y.to(run.device));
}

/// The gradients of the mean loss of x, in --accumulate parts; returns that loss.
Tensor add_gradients(GptRun& run, const GptOptions& o, const Tensor& x, const Tensor& y) {
  Tensor sum;
  const auto parts = static_cast<double>(o.accumulate);
  for (int64_t i = 0; i < o.accumulate; ++i) {
    const int64_t first = i * o.batch;
    const Tensor loss =
        loss_of(run, o, x.narrow(0, first, o.batch), y.narrow(0, first, o.batch)) / parts;
    (run.scaler ? run.scaler->scale(loss) : loss).backward();
    sum = sum.defined() ? sum + loss.detach() : loss.detach();
  }
  return sum;
}

/// Loss and norm of the gradients. A step in which one of them is not finite changes no parameter,
/// so that what went wrong can be looked at, and with float16 tried again at a smaller scale.
std::tuple<Tensor, Tensor> training_step(GptRun& run, const GptOptions& o, const Tensor& x,
                                         const Tensor& y) {
  run.optimizer->zero_grad();
  const Tensor loss = add_gradients(run, o, x, y);
  const std::vector<Tensor>& parameters = run.optimizer->parameters();
  Tensor skip;
  if (run.scaler) skip = run.scaler->unscale_(parameters);
  constexpr double any = 1e30;
  const Tensor norm = brrr::optim::clip_grad_norm_(parameters, o.clip > 0 ? o.clip : any);
  if (!run.scaler) skip = brrr::isnan((loss + norm) * 0.0);
  run.optimizer->step(skip);
  if (run.scaler) run.scaler->update(skip);
  return {loss, norm};
}

/// The first bad tensor of a step that has changed nothing: it is run again, without clipping,
/// which would spread one NaN to all gradients.
std::string diagnosis(GptRun& run, const GptOptions& o, const brrr::data::Batch& batch,
                      brrr::RngState before) {
  brrr::set_rng_state(before);
  run.optimizer->zero_grad();
  add_gradients(run, o, batch.x, batch.y);
  const std::string bad = brrr::models::first_nonfinite(*run.model);
  return bad.empty() ? "the parameters and their gradients are finite" : "first " + bad;
}

/// Mean loss per token, over batches spread evenly over the validation part, without gradients.
class Evaluation {
 public:
  Evaluation(GptRun& run, const GptOptions& o)
      : run_(run),
        options_(o),
        step_([this](const Tensor& x, const Tensor& y) { return loss_of(run_, options_, x, y); },
              brrr::StepOptions{.mode = mode_of(o.mode)}) {}

  double loss() {
    const brrr::NoGradGuard guard;
    run_.model->eval();
    double sum = 0;
    tokens_ = 0;
    const int64_t all = run_.data->validation_batches();
    // The data set's batches are those of a step: --accumulate times --batch.
    const int64_t wanted = (options_.eval_batches + options_.accumulate - 1) / options_.accumulate;
    const int64_t n = wanted > 0 ? std::min(wanted, all) : all;
    for (int64_t i = 0; i < n; ++i) {
      const auto [x, y] = run_.data->validation_batch(i * all / n);
      for (int64_t row = 0; row < x.size(0); row += options_.batch) {
        const int64_t rows = std::min(options_.batch, x.size(0) - row);
        const Tensor part = step_(x.narrow(0, row, rows), y.narrow(0, row, rows));
        sum += part.item<double>() * static_cast<double>(rows * options_.block);
        tokens_ += rows * options_.block;
      }
    }
    run_.model->train();
    return sum / static_cast<double>(tokens_);
  }
  int64_t tokens() const { return tokens_; }

 private:
  GptRun& run_;
  const GptOptions& options_;
  brrr::Step<std::function<Tensor(const Tensor&, const Tensor&)>> step_;
  int64_t tokens_ = 0;
};

void sample(GptRun& run, const GptOptions& o) {
  if (o.sample == 0) return;
  const std::vector<int64_t> ids = brrr::models::generate(*run.model, run.prompt,
                                                          {.tokens = o.sample,
                                                           .temperature = o.temperature,
                                                           .top_k = o.top_k,
                                                           .top_p = o.top_p,
                                                           .seed = static_cast<uint64_t>(o.seed),
                                                           .mode = mode_of(o.mode)});
  fmt::print("sample of {} tokens:\n{}{}\n", o.sample, o.prompt, decoded(run, ids));
}

std::string figures(const GptOptions& o, double loss, const Pace& pace) {
  return fmt::format("loss {:.4f}  {:.0f} tokens/s  {:.2f} ms/step  {:.0f} MB", loss,
                     pace.rate() * static_cast<double>(o.batch * o.accumulate * o.block),
                     pace.rate() > 0 ? 1e3 / pace.rate() : 0.0, peak_megabytes());
}

void summary(GptRun& run, const GptOptions& o, Pace pace, Evaluation& evaluation,
             const brrr::StepStats& stats) {
  const double entropy = brrr::data::unigram_entropy(run.text);
  const double loss = evaluation.loss();
  fmt::print(
      "validation loss {:.4f}, unigram entropy of the text {:.4f} (nats a token; {} tokens)\n",
      loss, entropy, evaluation.tokens());
  const double once = once_seconds(stats);
  pace = pace.without(once);
  fmt::print("{:.0f} steps/s", pace.rate());
  if (o.mode != "eager") {
    fmt::print("  ({} replays, {} recordings, {} fallbacks, {:.1f} ms once to record and build)",
               stats.replays, stats.recordings, stats.fallbacks, once * 1e3);
  }
  fmt::print("\nparameters {:016x}  (checksum of their bytes: the same in both modes)\n",
             checksum(run.model->parameters()));
}

[[noreturn]] void stop_bad(GptRun& run, const GptOptions& o, const brrr::data::Batch& batch,
                           brrr::RngState before, double loss, double norm) {
  throw std::runtime_error(fmt::format(
      "step {}: the loss is {}, the norm of the gradients {}: {}; no parameter was changed. "
      "--check-numerics names the operation; a smaller --lr or --clip 1 may help",
      run.step + 1, loss, plain(norm), diagnosis(run, o, batch, before)));
}

void train(GptRun& run, const GptOptions& o) {
  auto step =
      brrr::step([&](const Tensor& x, const Tensor& y) { return training_step(run, o, x, y); },
                 brrr::StepOptions{.mode = mode_of(o.mode),
                                   .verify_every = static_cast<int>(o.verify_every),
                                   .check_numerics = o.check_numerics});
  Evaluation evaluation(run, o);
  const int64_t end = o.stop_at > 0 ? std::min(o.stop_at, o.steps) : o.steps;
  LossLog losses(o.loss_csv, run.step);
  Pace pace;
  {
    Progress progress(run.step, end);
    while (run.step < end && !interrupted) {
      const auto begin = Clock::now();
      const brrr::RngState before = brrr::rng_state();
      const brrr::data::Batch batch = run.data->next();
      const auto [loss, norm] = step(batch.x, batch.y);
      losses.add(loss);
      const double now = losses.read(), size = norm.item<double>();
      if (!std::isfinite(now) || (!run.scaler && !std::isfinite(size))) {
        stop_bad(run, o, batch, before, now, size);
      }
      run.schedule->step();
      ++run.step;
      pace.seconds += seconds_since(begin);
      ++pace.steps;
      const bool evaluate = o.eval_every > 0 && run.step % o.eval_every == 0 && run.step < end;
      const bool log = run.step % o.log_every == 0 || run.step == end || evaluate;
      const std::string tested =
          evaluate ? fmt::format("  validation {:.4f}", evaluation.loss()) : "";
      // A terminal is slower than a step: it sees every 16th.
      if (log || run.step % 16 == 0) {
        progress.show(run.step, figures(o, now, pace.without(once_seconds(step.stats()))) + tested,
                      log);
      }
      if (o.save_every > 0 && run.step % o.save_every == 0) save_run(run, o);
    }
  }
  save_run(run, o);
  losses.write();
  if (interrupted) fmt::print("stopped by the user after step {}\n", run.step);
  summary(run, o, pace, evaluation, step.stats());
  if (o.compile_report) fmt::print("\n{}", step.explain());
}

void introduce(const GptRun& run, const GptOptions& o) {
  const std::string tokenizer = run.tokenizer ? run.tokenizer->name() : "unknown tokenizer";
  fmt::print("GPT {} layers, {} heads, width {}, block {}, vocabulary {} ({}): {} parameters\n",
             o.layers, o.heads, o.width, o.block, run.vocabulary, tokenizer,
             run.model->num_parameters());
  if (run.data) {
    fmt::print("{} tokens to train on, {} to validate on; {} a step; {} on {}, mode {}\n",
               run.data->train().size(), run.data->validation().size(),
               o.batch * o.accumulate * o.block, o.dtype, brrr::name(run.device), o.mode);
  }
  if (!o.resume.empty()) fmt::print("resumed {} at step {}\n", o.resume, run.step);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  GptOptions o;
  int exit_code = 0;
  try {
    if (!read_options(argc, argv, o, exit_code)) return exit_code;
    use_threads(static_cast<int>(o.threads));
    const auto run = make_run(o);
    // The first Ctrl-C ends the run after the current step, with its checkpoint; the second kills.
    std::signal(SIGINT, [](int) {
      interrupted = true;
      std::signal(SIGINT, SIG_DFL);
    });
    introduce(*run, o);
    if (run->data) train(*run, o);
    if (!interrupted) sample(*run, o);
  } catch (const std::exception& e) {
    std::fflush(stdout);
    fmt::print(stderr, "train_gpt: {}\n", e.what());
    return 1;
  }
  return interrupted ? 130 : 0;
}
