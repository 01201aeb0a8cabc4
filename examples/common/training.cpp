#include "examples/common/training.h"

#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <limits>

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

void TrainingOptions::add_saving(const std::string& name) {
  CLI::Option* file =
      add(name, checkpoint, "checkpoint (safetensors) to write at the end", output_file());
  add("--save-every", save_every, "also write it every so many steps (0: no)", whole_number(0))
      ->needs(file);
  add("--resume", resume, "checkpoint to go on from, with the options it was made with",
      CLI::ExistingFile);
}

// --- what a run prints ---------------------------------------------------------------------------

double plain(double v) { return std::isnan(v) ? std::numeric_limits<double>::quiet_NaN() : v; }

double LossLog::read() {
  for (const brrr::Tensor& t : pending_) {
    last_ = plain(static_cast<double>(t.item<float>()));
    if (!path_.empty()) text_ += fmt::format("{},{:.9g}\n", next_, last_);
    ++next_;
  }
  pending_.clear();
  return last_;
}

void LossLog::write() {
  read();
  if (!path_.empty()) write_file(path_, "step,loss\n" + text_);
}

Progress::Progress(int64_t first, int64_t total)
    : first_(first), total_(total), terminal_(isatty(STDOUT_FILENO) != 0) {}

Progress::~Progress() {
  if (open_) std::fputc('\n', stdout);
}

void Progress::show(int64_t at, const std::string& figures, bool milestone) {
  if (!terminal_ && !milestone) return;
  const std::string line =
      fmt::format("step {:>{}}/{}  {}{}", at, fmt::formatted_size("{}", total_), total_, figures,
                  remaining(at));
  // The rest of a longer line before it is erased, not overwritten with blanks.
  fmt::print("{}{}{}", terminal_ ? "\r" : "", line, terminal_ ? "\033[K" : "");
  if (milestone) std::fputc('\n', stdout);
  open_ = !milestone;
  std::fflush(stdout);
}

// 75 s as "1:15", 4000 s as "1:06:40".
std::string Progress::remaining(int64_t at) const {
  if (at >= total_ || at <= first_) return "";
  const double left =
      seconds_since(begin_) * static_cast<double>(total_ - at) / static_cast<double>(at - first_);
  const auto s = static_cast<int64_t>(std::ceil(left));
  if (s >= 3600) return fmt::format("  ETA {}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
  return fmt::format("  ETA {}:{:02}", s / 60, s % 60);
}

double once_seconds(const brrr::StepStats& s) {
  return s.record_seconds + s.fuse_seconds + s.plan_seconds + s.build_seconds + s.capture_seconds;
}

// Says in one number that two runs ended with the same bits: FNV-1a (Fowler, Noll and Vo) over the
// comparable_bytes() of the tensors, one after the other.
static uint64_t checksum(const std::vector<brrr::Tensor>& tensors) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const brrr::Tensor& t : tensors) {
    for (const char byte : brrr::comparable_bytes(t)) {
      hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001b3u;
    }
  }
  return hash;
}

// --- the loop ------------------------------------------------------------------------------------

static std::atomic<bool> interrupted{false};

int Training::train(const TrainingOptions& o) {
  std::signal(SIGINT, [](int) {
    interrupted = true;
    std::signal(SIGINT, SIG_DFL);
  });
  LossLog losses(o.loss_csv, step);
  Pace pace;
  {
    const int64_t end = o.end();
    Progress progress(step, end);
    while (step < end && !interrupted) {
      const auto due = [&](int64_t every) { return every > 0 && (step + 1) % every == 0; };
      const bool tests = due(o.eval_every), saves = due(o.save_every),
                 logs = due(o.log_every) || tests || step + 1 == end;
      const auto begin = Clock::now();
      const double loss = advance(losses, logs || saves || progress.on_terminal());
      schedule->step();
      ++step;
      pace.seconds += seconds_since(begin);
      ++pace.steps;
      const std::string tested = tests ? test() : "";
      // A terminal is slower than a step: it sees every 16th.
      if (logs || step % 16 == 0) progress.show(step, line(loss, pace, tested), logs);
      if (saves) save(losses);
    }
  }
  save(losses);
  losses.write();
  if (interrupted) fmt::print("stopped by the user after step {}\n", step);
  const brrr::StepStats s = stats();
  const double once = once_seconds(s);
  fmt::print("{}\n{:.0f} steps/s", result(), pace.without(once).rate());
  if (o.mode != "eager") {
    fmt::print("  ({} replays, {} recordings, {} fallbacks, {:.1f} ms once to record and build)",
               s.replays, s.recordings, s.fallbacks, once * 1e3);
  }
  fmt::print("\nparameters {:016x}  (checksum of their bytes: the same in both modes)\n",
             checksum(module().parameters()));
  if (o.explain) fmt::print("\n{}", explain());
  return interrupted ? 130 : 0;
}

}  // namespace examples
