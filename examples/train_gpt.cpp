// Trains a GPT on a text, eagerly or as a graph: the same code, the same bits.
#include <brrr/brrr.h>
#include <fmt/format.h>

#include <cmath>
#include <functional>

#include "core/check.h"
#include "examples/common/gpt_run.h"

using brrr::Tensor;
using namespace examples;

namespace {

class Trainer : public GptRun {
 public:
  explicit Trainer(GptOptions& o) : GptRun(o) {}
  void introduce() const;
  void sample() const;

 private:
  std::tuple<Tensor, Tensor> training_step(const Tensor& x, const Tensor& y);
  std::string diagnosis(const brrr::data::Batch& batch, brrr::RngState before);
  double validation_loss();

  Tensor loss_of(const Tensor& x, const Tensor& y) override;
  double advance(LossLog& losses, bool look) override;
  double test() override { return validation_loss(); }
  Unit unit() const override {
    const auto tokens = static_cast<double>(options.batch * options.passes() * options.model.block);
    return {"tokens", tokens, "validation", "{:.4f}"};
  }
  std::string result() override;
  brrr::DType compute_dtype() const override { return options.compute_dtype(); }
  brrr::StepStats stats() const override { return step_.stats(); }
  std::string explain() const override { return step_.explain(); }

  brrr::Step<std::function<std::tuple<Tensor, Tensor>(const Tensor&, const Tensor&)>> step_{
      [this](const Tensor& x, const Tensor& y) { return training_step(x, y); },
      {.mode = options.step_mode(),
       .verify_every = static_cast<int>(options.verify_every),
       .check_numerics = options.check_numerics}};
  brrr::Step<std::function<Tensor(const Tensor&, const Tensor&)>> evaluation_{
      [this](const Tensor& x, const Tensor& y) { return loss_of(x, y); },
      {.mode = options.step_mode()}};
  int64_t tested_ = 0;  // Tokens of the last test.
};

/// The batch moves to the device inside the step: with what else a replay takes from the host.
Tensor Trainer::loss_of(const Tensor& x, const Tensor& y) {
  const brrr::AutocastGuard guard(options.compute_dtype());
  return model->loss(x.to(device), y.to(device));
}

/// Loss and norm of the gradients. A step in which one of them is not finite changes no parameter,
/// so that what went wrong can be looked at, and with float16 tried again at a smaller scale.
std::tuple<Tensor, Tensor> Trainer::training_step(const Tensor& x, const Tensor& y) {
  optimizer->zero_grad();
  const Tensor loss = add_gradients(x, y);
  const std::vector<Tensor>& parameters = optimizer->parameters();
  Tensor skip;
  if (scaler) skip = scaler->unscale_(parameters);
  constexpr double any = 1e30;
  const Tensor norm =
      brrr::optim::clip_grad_norm_(parameters, options.clip > 0 ? options.clip : any);
  if (!scaler) skip = brrr::isnan(((brrr::dist::size() > 1 ? loss.sum() : loss) + norm) * 0.0);
  optimizer->step(skip);
  if (scaler) scaler->update(skip);
  return {loss, norm};
}

/// The first bad tensor of a step that has changed nothing: it is run again, without clipping,
/// which would spread one NaN to all gradients.
std::string Trainer::diagnosis(const brrr::data::Batch& batch, brrr::RngState before) {
  brrr::set_rng_state(before);
  optimizer->zero_grad();
  add_gradients(parallel->part(batch.x), parallel->part(batch.y));
  const std::string bad = brrr::models::first_nonfinite(*model);
  return bad.empty() ? "the parameters and their gradients are finite" : "first " + bad;
}

double Trainer::advance(LossLog& losses, bool) {
  const brrr::RngState before = brrr::rng_state();
  const brrr::data::Batch batch = data->next();
  const auto [loss, norm] = step_(parallel->part(batch.x), parallel->part(batch.y));
  losses.add(loss);
  const double now = losses.read(), size = norm.item<double>();
  BRRR_CHECK(
      std::isfinite(now) && (scaler || std::isfinite(size)),
      "step {}: the loss is {}{}, the norm of the gradients {}: {}; no parameter was changed. "
      "--check-numerics names the operation; a smaller --lr or --clip 1 may help",
      step + 1, now, losses.where(), plain(size), diagnosis(batch, before));
  return now;
}

/// Mean loss per token, over batches spread evenly over the validation part, without gradients.
double Trainer::validation_loss() {
  const brrr::NoGradGuard guard;
  model->eval();
  double sum = 0;
  tested_ = 0;
  const GptOptions& o = options;
  const int64_t all = data->validation_batches();
  // The data set's batches are those of a step.
  const int64_t wanted = (o.eval_batches + o.passes() - 1) / o.passes();
  const int64_t n = wanted > 0 ? std::min(wanted, all) : all;
  for (int64_t i = 0; i < n; ++i) {
    const auto [x, y] = data->validation_batch(i * all / n);
    for (int64_t row = 0; row < x.size(0); row += o.batch) {
      const int64_t rows = std::min(o.batch, x.size(0) - row);
      const Tensor part = evaluation_(x.narrow(0, row, rows), y.narrow(0, row, rows));
      sum += part.item<double>() * static_cast<double>(rows * o.model.block);
      tested_ += rows * o.model.block;
    }
  }
  model->train();
  return sum / static_cast<double>(tested_);
}

std::string Trainer::result() {
  const double loss = validation_loss();
  return fmt::format(
      "validation loss {:.4f}, unigram entropy of the text {:.4f} (nats a token; {} tokens)", loss,
      brrr::data::unigram_entropy(text), tested_);
}

void Trainer::introduce() const {
  const GptOptions& o = options;
  fmt::print("GPT {} layers, {} heads, width {}, block {}, vocabulary {} ({}): {} parameters\n",
             o.model.layers, o.model.heads, o.model.width, o.model.block, vocabulary,
             tokenizer ? tokenizer->name() : "unknown tokenizer", model->num_parameters());
  if (data) {
    fmt::print("{} tokens to train on, {} to validate on; {} a step; {} on {}, mode {}\n",
               data->train().size(), data->validation().size(),
               o.batch * o.passes() * o.model.block, o.dtype, brrr::name(device), o.mode);
  }
  if (!o.resume.empty()) fmt::print("resumed {} at step {}\n", o.resume, step);
  std::fflush(stdout);
}

void Trainer::sample() const {
  const GptOptions& o = options;
  if (o.sample == 0) return;
  const std::vector<int64_t> ids = brrr::models::generate(*model, prompt,
                                                          {.tokens = o.sample,
                                                           .temperature = o.temperature,
                                                           .top_k = o.top_k,
                                                           .top_p = o.top_p,
                                                           .seed = static_cast<uint64_t>(o.seed),
                                                           .mode = o.step_mode()});
  fmt::print("sample of {} tokens:\n{}{}\n", o.sample, o.prompt, decoded(ids));
}

}  // namespace

int main(int argc, char** argv) {
  GptOptions o;
  return o.run(argc, argv, [&] {
    Trainer trainer(o);
    trainer.introduce();
    const int status = trainer.data ? trainer.train() : 0;
    if (status == 0) trainer.sample();
    return status;
  });
}
