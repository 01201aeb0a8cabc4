// Trains an MLP to read digits, eagerly or as a graph: the same code, the same bits.
#include <brrr/brrr.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <csignal>
#include <limits>
#include <stdexcept>

#include "examples/common/checksum.h"
#include "examples/common/losses.h"
#include "examples/common/options.h"
#include "examples/common/progress.h"

using brrr::Tensor;
using namespace examples;

namespace {

using Clock = std::chrono::steady_clock;

struct Options {
  std::string mode = "graph", device = "cpu", data, optimizer = "adamw", save, resume, loss_csv;
  std::vector<int64_t> hidden = {256, 128};
  int64_t batch = 64, steps = 3000, seed = 1, images = 20000;
  int64_t save_every = 0, stop_at = 0, eval_every = 500, log_every = 250, threads = 0;
  double lr = 2e-3, dropout = 0.0;
  bool explain = false;
};

std::atomic<bool> interrupted{false};

void add_options(CLI::App& app, Options& o) {
  const double infinite = std::numeric_limits<double>::max();
  auto option = [&](const char* name, auto& v, const char* text, const CLI::Validator& check) {
    app.add_option(name, v, text)->check(check)->capture_default_str();
  };
  option("--mode", o.mode, "eager, graph, or auto: the faster of both",
         one_of({"eager", "graph", "auto"}));
  option("--device", o.device, "cpu or cuda", one_of({"cpu", "cuda"}));
  option("--data", o.data, "folder with MNIST's four IDX files; without it digits are generated",
         CLI::ExistingDirectory);
  option("--images", o.images, "how many digits to generate for training", whole_number(1));
  option("--batch", o.batch, "images in a step", whole_number(1));
  option("--steps", o.steps, "steps of the whole run, over which the schedule is laid out",
         whole_number(1));
  option("--stop-at", o.stop_at, "stop after this step, to resume later (0: never)",
         whole_number(0));
  option("--lr", o.lr, "highest learning rate; it rises for 5 % of the steps, then falls to 0",
         real_number(0, infinite));
  option("--seed", o.seed, "of weights, order and dropout", whole_number(0));
  app.add_option("--hidden", o.hidden, "sizes of the hidden layers")
      ->delimiter(',')
      ->check(whole_number(1))
      ->capture_default_str();
  option("--optimizer", o.optimizer, "adamw or sgd (momentum 0.9)", one_of({"adamw", "sgd"}));
  option("--dropout", o.dropout, "probability after each hidden layer", real_number(0, 0.99));
  option("--save", o.save, "checkpoint (safetensors) to write at the end", output_file());
  option("--save-every", o.save_every, "also write it every so many steps (0: no)",
         whole_number(0));
  option("--resume", o.resume, "checkpoint to go on from, with the options it was made with",
         CLI::ExistingFile);
  option("--eval-every", o.eval_every, "steps between tests on held-out images (0: at the end)",
         whole_number(0));
  option("--log-every", o.log_every, "steps between printed lines", whole_number(1));
  option("--loss-csv", o.loss_csv, "write every step's loss to this file", output_file());
  option("--threads", o.threads, "CPU threads (0: all cores)", whole_number(0));
  app.get_option("--save-every")->needs(app.get_option("--save"));
  app.add_flag("--explain", o.explain, "say what graph mode recorded, fused and replayed");
}

constexpr const char* kAbout =
    "Trains an MLP to read digits. Both modes give the same losses to the last bit.";

/// Reads the command line. What it does not say about a run that is resumed, the checkpoint does.
bool read_options(int argc, char** argv, Options& o, int& exit_code) {
  CLI::App app(kAbout, "train_mlp");
  add_options(app, o);
  if (!parse(app, argc, argv, exit_code)) return false;
  if (o.resume.empty()) return true;
  brrr::Metadata saved;
  brrr::load(o.resume, saved);
  std::vector<std::string> words(argv, argv + argc);
  for (const char* key : {"hidden", "optimizer", "batch", "seed", "steps", "lr", "dropout"}) {
    const std::string name = std::string("--") + key;
    if (app.count(name) == 0 && saved.count(key)) words.push_back(name + "=" + saved[key]);
  }
  std::vector<char*> all;
  for (std::string& w : words) all.push_back(w.data());
  o = {};
  CLI::App again(kAbout, "train_mlp");
  add_options(again, o);
  return parse(again, static_cast<int>(all.size()), all.data(), exit_code);
}

/// Everything that a checkpoint holds, and the data.
struct Run {
  brrr::Device device;
  brrr::data::Dataset train, test;
  std::unique_ptr<brrr::models::MLP> model;
  std::unique_ptr<brrr::optim::Optimizer> optimizer;
  std::unique_ptr<brrr::optim::Schedule> schedule;
  std::unique_ptr<brrr::data::Loader> loader;
  int64_t step = 0;

  brrr::TrainingState state(brrr::Metadata metadata = {}) const {
    return {model.get(), optimizer.get(), schedule.get(), loader.get(), step, std::move(metadata)};
  }
};

// What must be the same when a run goes on; it is kept in the checkpoint.
brrr::Metadata metadata(const Options& o) {
  return {{"hidden", fmt::format("{}", fmt::join(o.hidden, ","))},
          {"optimizer", o.optimizer},
          {"batch", std::to_string(o.batch)},
          {"seed", std::to_string(o.seed)},
          {"steps", std::to_string(o.steps)},
          {"lr", fmt::format("{}", o.lr)},
          {"dropout", fmt::format("{}", o.dropout)},
          {"data", o.data.empty() ? "digits" : "idx"}};
}

std::unique_ptr<Run> make_run(const Options& o) {
  auto run = std::make_unique<Run>();
  run->device = device_of(o.device);
  brrr::manual_seed(static_cast<uint64_t>(o.seed));
  namespace data = brrr::data;
  // Held-out digits come from a seed of their own; no training run shares it.
  constexpr uint64_t train_seed = 0, test_seed = 0x7e57;
  run->train =
      o.data.empty() ? data::digits(o.images, train_seed) : data::read_idx_dataset(o.data, true);
  run->test =
      o.data.empty() ? data::digits(4000, test_seed) : data::read_idx_dataset(o.data, false);
  if (run->test.images.size(1) != run->train.images.size(1)) {
    throw brrr::Error("--data: training and test images differ in size");
  }
  run->train = run->train.to(run->device);
  run->test = run->test.to(run->device);

  std::vector<int64_t> sizes = {run->train.images.size(1)};
  sizes.insert(sizes.end(), o.hidden.begin(), o.hidden.end());
  sizes.push_back(std::max(run->train.classes, run->test.classes));
  run->model = std::make_unique<brrr::models::MLP>(
      brrr::models::MLPOptions{.sizes = sizes, .activation = "relu", .dropout = o.dropout});
  run->model->to(run->device);
  const auto parameters = run->model->parameters();
  if (o.optimizer == "adamw") {
    run->optimizer = std::make_unique<brrr::optim::AdamW>(
        parameters, brrr::optim::AdamWOptions{.lr = o.lr, .weight_decay = 0.05});
  } else {
    run->optimizer = std::make_unique<brrr::optim::SGD>(
        parameters, brrr::optim::SGDOptions{.lr = o.lr, .momentum = 0.9, .weight_decay = 1e-4});
  }
  run->schedule =
      std::make_unique<brrr::optim::WarmupCosineLR>(*run->optimizer, o.steps / 20, o.steps);
  run->loader = std::make_unique<data::Loader>(
      run->train, data::LoaderOptions{.batch = o.batch, .seed = static_cast<uint64_t>(o.seed)});
  return run;
}

void resume(Run& run, const Options& o) {
  const brrr::Metadata now = metadata(o);
  brrr::Metadata saved;
  brrr::load(o.resume, saved);  // Checks the file before anything is believed.
  for (const auto& [key, value] : now) {
    const auto it = saved.find(key);
    if (it == saved.end() || it->second == value) continue;
    throw brrr::Error(fmt::format("--resume {}: it was made with {} {}, not {}; leave that out",
                                  o.resume, key, it->second, value));
  }
  brrr::TrainingState state = run.state();
  brrr::load_checkpoint(o.resume, state);
  run.step = state.step;
  fmt::print("resumed {} at step {}\n", o.resume, run.step);
}

double held_out_accuracy(Run& run) {
  brrr::NoGradGuard guard;
  run.model->eval();
  double right = 0;
  const int64_t n = run.test.size(), most = 1000;
  for (int64_t at = 0; at < n; at += most) {
    const int64_t end = std::min(n, at + most);
    right += brrr::data::accuracy((*run.model)(run.test.images.slice(0, at, end)),
                                  run.test.labels.slice(0, at, end)) *
             static_cast<double>(end - at);
  }
  run.model->train();
  return right / static_cast<double>(n);
}

void save(const Run& run, const Options& o) {
  if (!o.save.empty()) brrr::save_checkpoint(o.save, run.state(metadata(o)));
}

void summary(Run& run, const Options& o, const Pace& pace, double compile_ms,
             const brrr::StepStats& stats) {
  fmt::print("held-out accuracy {:.2f} %  ({} images)\n", 100 * held_out_accuracy(run),
             run.test.size());
  fmt::print("{:.0f} steps/s", pace.rate());
  if (o.mode != "eager") {
    fmt::print("  ({} replays, {} recordings, {} fallbacks, {:.1f} ms once to record and build)",
               stats.replays, stats.recordings, stats.fallbacks, compile_ms);
  }
  fmt::print("\nparameters {:016x}  (checksum of their bytes: the same in both modes)\n",
             checksum(run.model->parameters()));
}

// A run that has gone wrong ends here, and does not overwrite its last good checkpoint.
void check_finite(const Run& run, double loss) {
  if (std::isfinite(loss)) return;
  throw brrr::Error(fmt::format("the loss is {} by step {}; first {}; try a smaller --lr", loss,
                                run.step, brrr::models::first_nonfinite(*run.model)));
}

void train(Run& run, const Options& o) {
  auto step = brrr::step(
      [&](const Tensor& x, const Tensor& y) {
        Tensor loss = brrr::cross_entropy((*run.model)(x), y);
        run.optimizer->zero_grad();
        loss.backward();
        run.optimizer->step();
        return loss.detach();
      },
      mode_of(o.mode));

  const int64_t end = o.stop_at > 0 ? std::min(o.stop_at, o.steps) : o.steps;
  LossLog losses(o.loss_csv, run.step);
  Pace pace;
  {
    Progress progress(run.step, end);
    while (run.step < end && !interrupted) {
      const auto begin = Clock::now();
      const auto [x, y] = run.loader->next();
      losses.add(step(x, y));
      run.schedule->step();
      ++run.step;
      const bool log = run.step % o.log_every == 0 || run.step == end ||
                       (o.eval_every > 0 && run.step % o.eval_every == 0);
      const bool save_now = o.save_every > 0 && run.step % o.save_every == 0;
      const double loss = log || save_now || progress.on_terminal() ? losses.read() : 0;
      check_finite(run, loss);
      pace.seconds += std::chrono::duration<double>(Clock::now() - begin).count();
      ++pace.steps;
      std::string tested;
      if (o.eval_every > 0 && run.step % o.eval_every == 0) {
        tested = fmt::format("  accuracy {:.2f} %", 100 * held_out_accuracy(run));
      }
      // A terminal is slower than a step: it sees every 16th.
      if (log || run.step % 16 == 0) {
        progress.show(run.step,
                      fmt::format("loss {:.4f}{}  {:.0f} steps/s", loss, tested, pace.rate()), log);
      }
      if (save_now) save(run, o);
    }
  }
  check_finite(run, losses.read());
  save(run, o);
  losses.write();
  if (interrupted) fmt::print("stopped by the user after step {}\n", run.step);
  const brrr::StepStats stats = step.stats();
  const double once = once_seconds(stats);
  summary(run, o, pace.without(once), once * 1e3, stats);
  if (o.explain) fmt::print("\n{}", step.explain());
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  int exit_code = 0;
  try {
    if (!read_options(argc, argv, o, exit_code)) return exit_code;
    use_threads(static_cast<int>(o.threads));
    const auto run = make_run(o);
    if (!o.resume.empty()) resume(*run, o);
    // The first Ctrl-C ends the run after the current step, with its checkpoint; the second kills.
    std::signal(SIGINT, [](int) {
      interrupted = true;
      std::signal(SIGINT, SIG_DFL);
    });
    fmt::print("MLP {}-{}-{}, {} parameters, {} on {}, mode {}\n", run->train.images.size(1),
               fmt::join(o.hidden, "-"), run->train.classes, run->model->num_parameters(),
               o.optimizer, brrr::name(run->device), o.mode);
    train(*run, o);
  } catch (const std::exception& e) {
    std::fflush(stdout);
    fmt::print(stderr, "train_mlp: {}\n", e.what());
    return 1;
  }
  return interrupted ? 130 : 0;
}
