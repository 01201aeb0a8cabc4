#include "examples/common/training.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <csignal>
#include <cstdio>

#include "core/check.h"
#include "core/hash.h"
#include "core/text.h"
#include "models/text/utf8.h"
#include "tests/bench/measure/exchange.h"
#include "tests/bench/measure/output.h"

namespace examples {

using brrr::bench::Clock;
using brrr::bench::seconds_since;

// --- options -------------------------------------------------------------------------------------

brrr::Mode TrainingOptions::step_mode() const {
  return mode == "eager"   ? brrr::Mode::Eager
         : mode == "graph" ? brrr::Mode::Graph
                           : brrr::Mode::Auto;
}

void TrainingOptions::add_place() {
  add("--mode", mode, "eager, graph, or auto: the faster of both",
      one_of({"eager", "graph", "auto"}));
  add("--device", device, "cpu or cuda", one_of({"cpu", "cuda"}));
}

void TrainingOptions::add_steps(const std::string& what, int64_t least) {
  add("--steps", steps, what, whole_number(least));
  add("--stop-at", stop_at, "stop after this step, to resume later (0: never)", whole_number(0));
  add("--log-every", log_every, "steps between printed lines", whole_number(1));
  add_output("--loss-csv", loss_csv, "write every step's loss to this file");
  add("--threads", threads, "CPU threads (0: all cores)", thread_count(0));
}

void TrainingOptions::add_saving(const std::string& name) {
  add_output(name, checkpoint, "checkpoint (safetensors) to write at the end");
  add("--save-every", save_every, "also write it every N steps (0: no)", whole_number(0));
  needs("--save-every", name);
  add_output("--log", log, "write the figures of every line as a line of JSON", false);
  add_output("--kernels", kernels, "write the text of the kernels that graph mode generated here");
  add_input("--resume", resume, "checkpoint to resume, with the options it was made with",
            existing_file());
  add_input("--init", init,
            "checkpoint whose weights a new run begins with: other data, more steps",
            existing_file());
  resume_output_ = &checkpoint;
  saved_defaults_ = {"log-every"};
}

void TrainingOptions::add_batch(const std::string& what) {
  add("--batch", batch, what + " in a forward pass", whole_number(1, INT32_MAX));
  add("--accumulate", accumulate,
      "forward and backward passes in a step, in each process that mpirun starts",
      whole_number(1, INT32_MAX));
  add("--shard", shard,
      "what mpirun's processes divide instead of each keeping all of it: none, optimizer (its "
      "state), gradients (and those); the bits are the same",
      one_of({"none", "optimizer", "gradients"}));
}

void TrainingOptions::check_step() const {
  BRRR_CHECK(kernels.empty() || mode != "eager",
             "--kernels: eager mode generates none; use --mode graph");
  BRRR_CHECK(passes() <= INT32_MAX / batch, "--batch {} times {} passes is too much for a step",
             batch, passes());
}

void TrainingOptions::check_memory(const std::string& sizes, double parameters) {
  // Weight, gradient and AdamW's two moments, four bytes each.
  const double needed = 16 * parameters;
  const double memory =
      static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
  BRRR_CHECK(needed <= memory,
             "{}: about {:.3g} parameters take {:.3g} GB in training; this machine has {:.3g} GB",
             sizes, parameters, needed * 1e-9, memory * 1e-9);
}

brrr::Metadata TrainingOptions::to_save() const {
  brrr::Metadata all = saved_options();
  all["accumulate"] = std::to_string(passes());
  all["log-every"] = std::to_string(log_every);
  return all;
}

void TrainingOptions::adapt(brrr::Metadata& saved) const {
  const int64_t all = number_of(saved.emplace("accumulate", "1").first->second);
  const int ranks = brrr::dist::size();
  BRRR_CHECK(all > 0 && all % ranks == 0,
             "--resume {}: a step of it is {} passes, which do not divide among {} processes",
             resume, brrr::shown(saved["accumulate"]), ranks);
  saved["accumulate"] = std::to_string(all / ranks);
}

uint64_t checksum(const std::vector<brrr::Tensor>& tensors) {
  brrr::Fnv sum;
  for (const brrr::Tensor& t : tensors) {
    const auto bytes = brrr::comparable_bytes(t);
    sum.add(bytes.data(), bytes.size());
  }
  return sum.hash;
}

// --- the loop ------------------------------------------------------------------------------------

static std::atomic<int> interrupted{0};  // The signal's number.
constexpr int kProfiledSteps = 5;

// Peak memory of tensors.
static double peak_megabytes(brrr::Device device) {
  return static_cast<double>(brrr::memory_stats(device).peak) * 1e-6;
}

std::string Training::text_of(const Progress& now) const {
  const Unit u = unit();
  const double rate = now.pace.rate();
  std::string t = fmt::format("loss {:.4f}", now.loss);
  if (rate > 0) {
    t += fmt::format("  {:.0f} {}/s  {:.2f} ms/step", now.pace.unit_rate(), u.name,
                     now.pace.step_ms());
    if (peak_gflops_ > 0) {
      t += fmt::format("  {:.0f} % of peak", 100 * flops_ * rate * 1e-9 / peak_gflops_);
    }
  }
  t += fmt::format("  {:.0f} MB", peak_megabytes(device));
  if (now.tested) {
    t += fmt::format("  {} {}", u.tested, fmt::format(fmt::runtime(u.form), *now.tested));
  }
  return t;
}

std::string Training::json_of(const Progress& now) const {
  const Unit u = unit();
  brrr::bench::Json j = {{"step", now.step}, {"loss", now.loss}};
  const double rate = now.pace.rate();
  if (rate > 0) {
    j[std::string(u.name) + "_per_s"] = now.pace.unit_rate();
    j["ms_per_step"] = now.pace.step_ms();
  }
  if (peak_gflops_ > 0 && rate > 0) {
    j["flops_per_step"] = flops_;
    j["gflops_per_s"] = flops_ * rate * 1e-9;
    j["share_of_peak"] = flops_ * rate * 1e-9 / peak_gflops_;
  }
  if (now.eta_s > 0) j["eta_s"] = now.eta_s;
  j["peak_mb"] = peak_megabytes(device);
  if (now.tested) j[u.tested] = *now.tested;
  return j.dump() + '\n';
}

Training::Training(const TrainingOptions& o, const brrr::StepOptions& step)
    : step_([this](const auto& x, const auto& y) { return training_step(x, y); }, step),
      options_(o) {}

double Training::one_step(RunLog& log, bool look) {
  const double once = once_seconds(step_.stats());
  const auto begin = Clock::now();
  const double loss = advance(log, look);
  schedule->step();
  ++step;
  const double spent = seconds_since(begin), built = once_seconds(step_.stats()) - once;
  pace_.seconds += std::max(0.0, spent - built);
  ++pace_.steps;
  pace_.units += unit().per_step;
  return loss;
}

// Profiles kProfiledSteps steps, once per run. They train, but do not count for the pace.
double Training::profiled_step(RunLog& log, bool look) {
  const Pace before = pace_;
  const brrr::Profile profile;
  const double loss = one_step(log, look);
  const brrr::TimeSplit t = profile.total();
  pace_ = before;
  split_ = {split_.us + t.us, split_.compute_us + t.compute_us, split_.memory_us + t.memory_us};
  for (const brrr::ProfileRow& row : profile.kinds()) {
    flops_ += row.flops;
    bytes_ += row.bytes;
  }
  if (++profiled_steps_ < kProfiledSteps) return loss;
  flops_ /= kProfiledSteps;
  bytes_ /= kProfiledSteps;
  peak_gflops_ = brrr::device_limits(device).gflops_of(compute_dtype());
  return loss;
}

// The breakdown of a step's time; empty if the run was too short to profile.
std::string Training::summary() const {
  if (peak_gflops_ == 0 || pace_.steps == 0) return "";
  const double us = 1e3 * pace_.step_ms();
  const brrr::TimeSplit t = split_.each(kProfiledSteps, us);
  return fmt::format(
      "a step, {:.2f} ms: compute {:.0f} %, memory {:.0f} %, overhead {:.0f} %; {} MFLOP, {} MB "
      "moved; {:.1f} GFLOP/s, {:.0f} % of the peak of {:.0f}\n",
      us * 1e-3, 100 * t.share(t.compute_us), 100 * t.share(t.memory_us), 100 * t.overhead_share(),
      brrr::bench::three_figures(flops_ * 1e-6), brrr::bench::three_figures(bytes_ * 1e-6),
      flops_ / us * 1e-3, 100 * flops_ / us * 1e-3 / peak_gflops_, peak_gflops_);
}

void Training::restore(brrr::models::Module& model, brrr::Stateful* data) {
  parts_ = {.model = &model,
            .optimizer = optimizer.get(),
            .schedule = schedule.get(),
            .loader = data,
            .scaler = scaler.get()};
  const brrr::Metadata saved = options_.checkpoint.empty() ? brrr::Metadata() : notes();
  for (const auto& [key, text] : saved) {  // Now, not in the first checkpoint after many steps.
    BRRR_CHECK(brrr::data::is_utf8(text),
               "--{} {}: its name is not UTF-8, and a checkpoint could not keep it; rename it", key,
               text);
  }
  if (options_.source().empty()) return;
  if (!options_.resume.empty()) {
    brrr::load_checkpoint(options_.resume, parts_);
    step = parts_.step;
    // (A run that only samples has no schedule.)
    BRRR_CHECK(!schedule || schedule->steps() == step,
               "--resume {}: it is of step {}, its learning rate of step {}: it is damaged",
               options_.resume, step, schedule->steps());
    BRRR_CHECK(!data || batches() == step,
               "--resume {}: it is of step {}, its data at batch {}: it is damaged",
               options_.resume, step, batches());
    fmt::print("resumed {} at step {}\n", options_.resume, step);
    return;
  }
  brrr::TrainingState weights{.model = parts_.model};
  const brrr::RngState drawn = brrr::rng_state();
  brrr::load_checkpoint(options_.init, weights);
  brrr::set_rng_state(drawn);  // A new run does not continue the old run's stream.
  fmt::print("begins with the weights of {}, made in {} steps\n", options_.init, weights.step);
}

// Collective, because only its owner has a sharded gradient.
std::string Training::describe_nonfinite() const {
  namespace dist = brrr::dist;
  std::string bad = brrr::models::first_nonfinite(*parts_.model);
  const brrr::Tensor found = dist::all_gather(brrr::full({1}, bad.empty() ? 0 : 1));
  const int owner = static_cast<int>(found.argmax(0).item<int64_t>());
  if (dist::size() > 1) bad = dist::broadcast_text(bad, owner);
  return bad.empty() ? "the parameters and their gradients are finite" : "first " + bad;
}

double Training::finite_loss(RunLog& log, int64_t at) const {
  const double loss = log.read();
  BRRR_CHECK(std::isfinite(loss), "the loss is {}{} by step {}: {}; try a smaller --lr", loss,
             log.where(), at, describe_nonfinite());
  return loss;
}

void Training::save(RunLog& log) {
  finite_loss(log, step);  // Throws before it would overwrite the last good checkpoint.
  // Before the checkpoint: a resumed run expects the losses and lines of all steps up to it.
  log.flush();
  // The loss was computed before the last update: check the updated parameters, too.
  const std::string bad = brrr::models::first_nonfinite(parts_.model->named_parameters());
  BRRR_CHECK(bad.empty(),
             "the parameters are not finite after step {}: first {}; they go to no "
             "checkpoint; try a smaller --lr",
             step, bad);
  if (options_.checkpoint.empty()) return;
  parts_.step = step;
  parts_.metadata = options_.to_save();
  parts_.metadata.merge(notes());
  brrr::save_checkpoint(options_.checkpoint, parts_);
}

brrr::Tensor Training::add_gradients(const brrr::Tensor& x, const brrr::Tensor& y) {
  const TrainingOptions& o = options_;
  const int ranks = brrr::dist::size();
  std::vector<brrr::Tensor> losses;
  for (int64_t i = 0; i < o.accumulate; ++i) {
    const auto part = [&](const brrr::Tensor& t) {
      return o.accumulate == 1 ? t : t.narrow(0, i * o.batch, o.batch);
    };
    parallel->begin_pass();
    const brrr::Tensor loss = loss_of(part(x), part(y));
    (scaler ? scaler->scale(loss) : loss).backward();
    losses.push_back(ranks == 1 ? loss.detach() : loss.detach().view({1}));
  }
  const auto mean = [&](const std::vector<brrr::Tensor>& all) {
    brrr::Tensor sum = all[0];
    for (size_t k = 1; k < all.size(); ++k) sum = sum + all[k];
    return sum * (1.0 / static_cast<double>(o.passes()));
  };
  if (ranks == 1) return o.passes() > 1 ? mean(losses) : losses[0];
  // Sums the passes in the order in which a single process would.
  const brrr::Tensor all = brrr::dist::all_gather(brrr::cat(losses));
  const brrr::Tensor each = all.view({ranks, o.accumulate}).sum({1});
  return brrr::cat({mean(all.split(1)), each});
}

// What a step exchanges with the other processes.
static std::string exchange_line(int64_t steps) {
  if (brrr::dist::size() == 1 || steps == 0) return "";
  const auto cost = brrr::bench::exchange_cost({}, static_cast<double>(steps));
  return fmt::format(
      "{} processes ({}): {:.3g} MB a step sent by each, under way {:.2f} ms, waited for {:.2f} ms "
      "({:.0f} % hidden)\n",
      brrr::dist::size(), brrr::dist::transport(), cost.megabytes, cost.under_way_ms,
      cost.waited_ms, 100 * cost.hidden());
}

// Each process's share of the training state, and its peak of tensor memory.
std::string Training::sharding_line() const {
  if (brrr::dist::size() == 1) return "";
  double gradients = 0;
  for (const brrr::Tensor& g : brrr::optim::distinct_gradients(optimizer->parameters())) {
    gradients += static_cast<double>(g.numel() * static_cast<int64_t>(itemsize(g.dtype())));
  }
  const std::vector<double> mine = {static_cast<double>(optimizer->state_bytes()), gradients,
                                    static_cast<double>(brrr::memory_stats(device).peak)};
  const std::vector<double> all = brrr::dist::all_gather(brrr::tensor(mine)).to_vector<double>();
  std::string text = "MB by process:";
  const char* const names[] = {"optimiser state", "gradients", "peak of tensors"};
  for (size_t k = 0; k < mine.size(); ++k) {
    text += fmt::format("{} {}", k ? ";" : "", names[k]);
    for (size_t at = k; at < all.size(); at += mine.size()) {
      text += fmt::format("{} {}", at > k ? "," : "", brrr::bench::three_figures(all[at] * 1e-6));
    }
  }
  return text + "\n";
}

int Training::train() {
  const TrainingOptions& o = options_;
  BRRR_CHECK(o.kernels.empty() || o.end() - step > 1,
             "--kernels: they are built in the second of a run's steps, and this one has {}",
             std::max<int64_t>(0, o.end() - step));
  std::vector<std::string> options = {"--mode " + o.mode,
                                      fmt::format("--verify-every {}", o.verify_every),
                                      fmt::format("--eval-every {}", o.eval_every),
                                      fmt::format("--log-every {}", o.log_every),
                                      fmt::format("--stop-at {}", o.stop_at),
                                      fmt::format("--save-every {}", o.save_every),
                                      o.checkpoint.empty() ? "nothing to save" : "a file to save"};
  for (const auto& [name, value] : o.saved_options()) options.push_back("--" + name + " " + value);
  // Files of the same name may differ between machines.
  if (brrr::dist::size() > 1) options.push_back(fmt::format("data of hash {:016x}", data_hash()));
  brrr::dist::check_alike("the options of the processes", options);
  try {
    return run();
  } catch (const std::exception& e) {
    if (brrr::dist::size() == 1) throw;
    end_all(e.what());  // Before buffers of exchanges in flight are destroyed.
  }
}

int Training::run() {
  const TrainingOptions& o = options_;
  // Ctrl-C, a batch system's time limit, a closed terminal, and a reader of stdout that has exited,
  // like tee in `train_gpt | tee log` after Ctrl-C. The last two stay ignored if they were ignored
  // at the start (nohup). Under mpirun no handlers: it ends all processes itself.
  const auto on_signals = [](void (*handler)(int)) {
    if (brrr::dist::size() > 1) return;
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) {
      const bool ignored = std::signal(signal, handler) == SIG_IGN;
      if (ignored && (signal == SIGHUP || signal == SIGPIPE)) std::signal(signal, SIG_IGN);
    }
  };
  on_signals([](int signal) {
    interrupted = signal;
    std::signal(signal, SIG_DFL);
  });
  RunLog log(o, step);
  const int64_t first = step;
  constexpr double profile_after = 1;  // In seconds of training.
  const int64_t end = o.end();
  {
    ProgressLine line(step, end);
    Pace last;
    while (step < end && !interrupted) {
      // Whether the next step is a multiple of `every`.
      const auto due = [&](int64_t every) { return every > 0 && (step + 1) % every == 0; };
      const bool tests = due(o.eval_every), saves = due(o.save_every),
                 logs = due(o.log_every) || tests || step + 1 == end;
      const bool reads = logs || saves || line.on_terminal(),
                 profiled = profiled_steps_ < kProfiledSteps && pace_.seconds > profile_after;
      const double loss = profiled ? profiled_step(log, reads) : one_step(log, reads);
      Progress now{.step = step, .loss = loss, .pace = pace_ - last};
      now.eta_s = line.seconds_left(step);
      if (tests && step < end) now.tested = test();  // The summary has the last test.
      // Terminal output can take longer than a step: update it every 16th step.
      if (logs || step % 16 == 0) line.show(step, text_of(now), logs);
      if (logs) {
        last = pace_;
        log.write(json_of(now));
        log.flush();  // Detects an error now, not after hours of steps without a checkpoint.
      }
      if (saves) save(log);
    }
  }
  save(log);
  on_signals(SIG_DFL);  // The rest may be interrupted.
  if (interrupted) {
    fmt::print("stopped by a signal after step {}\n", step);
    std::fflush(stdout);  // Ends here, by SIGPIPE, if stdout has no reader.
  }
  fmt::print("{}\n{}", result(),
             pace_.steps == 0
                 ? "no step taken"
                 : fmt::format("{} steps/s", brrr::bench::three_figures(pace_.rate())));
  if (o.mode != "eager") {
    const brrr::StepStats s = step_.stats();
    fmt::print("  ({} replays, {} recordings, {} fallbacks, {:.1f} ms once to record and build)",
               s.replays, s.recordings, s.fallbacks, once_seconds(s) * 1e3);
  }
  fmt::print("\n{}{}{}parameters {:016x}  (checksum of their bytes: the same in both modes)\n",
             summary(), exchange_line(step - first), sharding_line(),
             checksum(parts_.model->parameters()));
  if (o.explain) fmt::print("\n{}", step_.explain());
  if (!o.kernels.empty() && brrr::dist::rank() == 0) write_file(o.kernels, step_.source());
  return interrupted ? 128 + interrupted : 0;
}

}  // namespace examples
