// Trains a GPT on a text, eagerly or as a graph: the same code, the same bits.
#include <brrr/brrr.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <utility>

#include "core/check.h"
#include "examples/common/gpt_options.h"

using brrr::Tensor;
using namespace examples;
namespace data = brrr::data;
namespace fs = std::filesystem;

namespace {

// Keys of a checkpoint's metadata in addition to the options.
constexpr const char* kVocabulary = "vocabulary";
constexpr const char* kTokenizer = "tokenizer-state";

bool is_tokens(const std::string& path) {
  return fs::path(path).extension() == ".bin" || has_train_bin(path);
}

// The path of the text; without --data that of brrr's own sources.
std::string source_of_text(const GptOptions& o) { return o.data.empty() ? "." : o.data; }

std::string read_text(const GptOptions& o) {
  BRRR_CHECK(!o.data.empty() || (fs::exists("brrr.h") && fs::exists("models/gpt.h")),
             "no --data, and brrr's own sources are not here: give a text with --data, or start "
             "train_gpt in brrr's folder");
  const auto load = o.tokenizer == "byte" ? data::load_bytes : data::load_text;
  const std::string from = source_of_text(o);
  return fs::is_directory(from) ? data::load_sources(from, data::kSourceExtensions, load)
                                : load(from);
}

// The tokenizer of a new run; null if only the size of the vocabulary is known.
std::unique_ptr<data::Tokenizer> new_tokenizer(const GptOptions& o, const std::string& text) {
  if (o.tokenizer == "byte") return std::make_unique<data::ByteTokenizer>();
  if (o.tokenizer == "gpt2") {
    if (!o.vocab.empty()) return std::make_unique<data::GPT2Tokenizer>(o.vocab, o.merges);
    BRRR_CHECK(is_tokens(o.data),
               "--tokenizer gpt2 needs its files: --vocab vocab.json --merges merges.txt");
    return nullptr;
  }
  try {
    return std::make_unique<data::CharTokenizer>(text);
  } catch (const brrr::Error& e) {
    brrr::fail(
        "--data {}: {}{}", source_of_text(o), e.what(),
        fs::is_directory(source_of_text(o)) ? " (offsets are of all its files in a row)" : "");
  }
}

// The tokenizer that a checkpoint was made with; --vocab and --merges must agree with it.
std::unique_ptr<data::Tokenizer> saved_tokenizer(const GptOptions& o, int64_t vocabulary) {
  const auto state = o.saved.find(kTokenizer);
  std::unique_ptr<data::Tokenizer> tokenizer;
  try {
    if (state != o.saved.end()) tokenizer = data::tokenizer_from_state(state->second);
  } catch (const brrr::Error& e) {
    BRRR_CHECK(
        !o.vocab.empty(),
        "{}: its tokenizer cannot be read ({}); if it is of another version, give --vocab and "
        "--merges",
        o.source_option(), e.what());
  }
  if (!o.vocab.empty()) {
    auto given = std::make_unique<data::GPT2Tokenizer>(o.vocab, o.merges);
    BRRR_CHECK(given->vocab_size() == vocabulary,
               "--vocab {}: {} tokens, but the model in {} has {}", o.vocab, given->vocab_size(),
               o.source(), vocabulary);
    BRRR_CHECK(!tokenizer || given->state() == tokenizer->state(),
               "--vocab {}: {} was made with another vocabulary or other merges; leave the two "
               "files out",
               o.vocab, o.source());
    return given;
  }
  BRRR_CHECK(!tokenizer || tokenizer->vocab_size() <= vocabulary,
             "{}: its tokenizer has {} tokens, its model only {}", o.source(),
             tokenizer->vocab_size(), vocabulary);
  return tokenizer;
}

void check_sizes(const GptOptions& o, int64_t vocabulary) {
  o.check_step();
  BRRR_CHECK(o.steps == 0 || o.warmup < o.steps, "--warmup {}: it must be below --steps {}",
             o.warmup, o.steps);
  const auto width = static_cast<double>(o.model.width);
  o.check_memory(
      fmt::format("--layers {}, --width {}, --block {}", o.model.layers, o.model.width,
                  o.model.block),
      12.0 * static_cast<double>(o.model.layers) * width * width +
          (static_cast<double>(vocabulary) + static_cast<double>(o.model.block)) * width);
}

// --- the run -------------------------------------------------------------------------------------

class Run : public Training {
 public:
  /// Creates everything, and restores it from o.source() if that is given. All errors in files and
  /// options throw here. Sets o.tokenizer if it was not given.
  explicit Run(GptOptions& o);
  bool trains() const { return options_.steps > 0; }
  void introduce() const;
  void sample() const;

 private:
  void find_tokenizer(const std::string& characters);
  void make_data(const std::string& characters);
  void make_training();
  std::vector<int64_t> encode_prompt() const;
  std::string diagnosis(const data::Batch& batch, brrr::RngState before);

  Tensor loss_of(const Tensor& x, const Tensor& y) override;
  std::vector<Tensor> training_step(const Tensor& x, const Tensor& y) override;
  double advance(RunLog& log, bool look) override;
  double test() override;
  Unit unit() const override {
    const GptOptions& o = options_;
    return {"tokens", static_cast<double>(o.batch * o.passes() * o.model.block), "validation",
            "{:.4f}"};
  }
  std::string result() override;
  brrr::Metadata notes() const override;
  int64_t batches() const override { return data_->position(); }
  uint64_t data_hash() const override { return data_->hash(); }
  brrr::DType compute_dtype() const override { return options_.compute_dtype(); }

  GptOptions& options_;
  std::unique_ptr<data::Tokenizer> tokenizer_;  // Null if that of a .bin file is unknown.
  int64_t vocabulary_ = 0;
  std::vector<int64_t> prompt_;
  std::unique_ptr<brrr::models::GPT> model_;
  // Empty in a run that only samples.
  data::Tokens text_;
  std::unique_ptr<data::TokenDataset> data_;
  brrr::Step<std::function<Tensor(const Tensor&, const Tensor&)>> evaluation_{
      [this](const Tensor& x, const Tensor& y) { return loss_of(x, y); },
      {.mode = options_.step_mode()}};
  int64_t tested_ = 0;  // Number of tokens in the last test.
};

Run::Run(GptOptions& o)
    : Training(o, {.mode = o.step_mode(),
                   .verify_every = static_cast<int>(o.verify_every),
                   .check_numerics = o.check_numerics}),
      options_(o) {
  device = device_of(o.device);
  if (o.tokenizer.empty()) o.tokenizer = is_tokens(o.data) ? "gpt2" : "char";
  BRRR_CHECK(o.tokenizer == "gpt2" || o.vocab.empty(),
             "--vocab and --merges are gpt2's, the tokenizer is {}", o.tokenizer);
  BRRR_CHECK(!trains() || !is_tokens(o.data) || o.tokenizer != "char",
             "--data {}: it holds token ids, which a char tokenizer does not explain; {}", o.data,
             o.source().empty() ? "use --tokenizer gpt2 or byte" : "give a text");
  const std::string characters = trains() && !is_tokens(o.data) ? read_text(o) : "";
  find_tokenizer(characters);
  prompt_ = encode_prompt();
  check_sizes(o, vocabulary_);
  if (trains()) make_data(characters);
  brrr::manual_seed(static_cast<uint64_t>(o.seed));
  o.model.vocab = vocabulary_;
  model_ = std::make_unique<brrr::models::GPT>(o.model);
  model_->to(device);
  if (trains()) make_training();
  restore(*model_, data_.get());
}

void Run::find_tokenizer(const std::string& characters) {
  const GptOptions& o = options_;
  if (o.source().empty()) {
    tokenizer_ = new_tokenizer(o, characters);
    vocabulary_ = tokenizer_ ? tokenizer_->vocab_size() : 50257;
    return;
  }
  vocabulary_ = o.saved.count(kVocabulary) ? number_of(o.saved.at(kVocabulary)) : -1;
  BRRR_CHECK(vocabulary_ >= 0,
             "{}: it is not a checkpoint of train_gpt: {} is missing or not a number", o.source(),
             kVocabulary);
  const double bytes = 4.0 * static_cast<double>(vocabulary_) * static_cast<double>(o.model.width);
  BRRR_CHECK(bytes <= static_cast<double>(std::filesystem::file_size(o.source())),
             "{}: it is not a checkpoint of train_gpt: it has no room for a vocabulary of {}",
             o.source(), vocabulary_);
  tokenizer_ = saved_tokenizer(o, vocabulary_);
  BRRR_CHECK(tokenizer_ || o.steps == 0 || is_tokens(o.data),
             "{}: no tokenizer is known for a text; give --vocab and --merges, or the .bin file "
             "with --data",
             o.source_option());
}

// Tokenises the text, or maps the token files, and makes the data set.
void Run::make_data(const std::string& characters) {
  const GptOptions& o = options_;
  const data::TokenDatasetOptions sizes = {.vocab = vocabulary_,
                                           .block = o.model.block,
                                           .batch = o.batch * o.passes(),
                                           .seed = static_cast<uint64_t>(o.seed)};
  if (has_train_bin(o.data)) {
    text_ = data::map_tokens(o.data + "/train.bin");
    const data::Tokens validation = data::map_tokens(o.data + "/val.bin");
    data_ = std::make_unique<data::TokenDataset>(text_, validation, sizes);
    return;
  }
  try {
    text_ =
        is_tokens(o.data) ? data::map_tokens(o.data) : data::Tokens(tokenizer_->encode(characters));
    data_ = std::make_unique<data::TokenDataset>(text_, sizes);
  } catch (const brrr::Error& e) {
    brrr::fail("{}, --block {}: {}{}", o.data.empty() ? "brrr's sources" : "--data " + o.data,
               o.model.block, e.what(),
               o.source().empty() ? "" : "; " + o.source() + " goes with the text that it had");
  }
}

void Run::make_training() {
  const GptOptions& o = options_;
  parallel = std::make_unique<brrr::dist::DataParallel>(*model_, o.parallel());
  optimizer = std::make_unique<brrr::optim::AdamW>(
      model_->parameters(),
      brrr::optim::AdamWOptions{.lr = o.lr,
                                .betas = {0.9, 0.99},
                                .weight_decay = o.weight_decay,
                                .decay = [](const Tensor& p) { return p.dim() >= 2; }});
  schedule =
      std::make_unique<brrr::optim::WarmupCosineLR>(*optimizer, o.warmup, o.steps, o.lr / 10);
  if (o.dtype != "float16") return;
  scaler =
      std::make_unique<brrr::optim::GradScaler>(brrr::optim::GradScalerOptions{.device = device});
}

// Called before the first step, so that an invalid prompt does not waste a run.
std::vector<int64_t> Run::encode_prompt() const {
  const std::string& given = options_.prompt;
  if (options_.sample == 0) return {};
  BRRR_CHECK(tokenizer_ || given.empty(),
             "--prompt: no tokenizer is known; give --vocab and --merges");
  try {
    if (tokenizer_) return tokenizer_->encode(given.empty() ? "\n" : given);
  } catch (const brrr::Error& e) {
    if (!given.empty()) brrr::fail("--prompt: {}", e.what());
  }
  return {0};
}

brrr::Metadata Run::notes() const {
  brrr::Metadata notes = {{"data", options_.data}, {kVocabulary, std::to_string(vocabulary_)}};
  if (tokenizer_) notes[kTokenizer] = tokenizer_->state();
  return notes;
}

/// Moves the batch to the device inside the step, in one copy with the replay's other host data.
Tensor Run::loss_of(const Tensor& x, const Tensor& y) {
  const brrr::AutocastGuard guard(options_.compute_dtype());
  return model_->loss(x.to(device), y.to(device));
}

/// Returns the loss and the norm of the gradients. If one of them is not finite the step changes no
/// parameter, so that diagnosis() can find the cause, or float16 can go on with a smaller scale.
std::vector<Tensor> Run::training_step(const Tensor& x, const Tensor& y) {
  optimizer->zero_grad();
  const Tensor loss = add_gradients(x, y);
  const std::vector<Tensor>& parameters = optimizer->parameters();
  Tensor skip;
  if (scaler) skip = scaler->unscale_(parameters);
  constexpr double any = 1e30;
  const Tensor norm =
      brrr::optim::clip_grad_norm_(parameters, options_.clip > 0 ? options_.clip : any);
  if (!scaler) skip = brrr::isnan(((brrr::dist::size() > 1 ? loss.sum() : loss) + norm) * 0.0);
  optimizer->step(skip);
  if (scaler) scaler->update(skip);
  return {loss, norm};
}

/// Describes the first non-finite tensor of a step that was skipped. Repeats its passes without
/// clipping, which would spread one NaN to all gradients.
std::string Run::diagnosis(const data::Batch& batch, brrr::RngState before) {
  brrr::set_rng_state(before);
  optimizer->zero_grad();
  add_gradients(parallel->part(batch.x), parallel->part(batch.y));
  return describe_nonfinite();
}

double Run::advance(RunLog& log, bool) {
  const brrr::RngState before = brrr::rng_state();
  const data::Batch batch = data_->next();
  const std::vector<Tensor> results = step_(parallel->part(batch.x), parallel->part(batch.y));
  log.add(results[0]);
  const double now = log.read(), size = results[1].item<double>();
  BRRR_CHECK(
      std::isfinite(now) && (scaler || std::isfinite(size)),
      "step {}: the loss is {}{}, the norm of the gradients {}: {}; no parameter was changed. "
      "--check-numerics names the operation; a smaller --lr or --clip may help",
      step + 1, now, log.where(), plain(size), diagnosis(batch, before));
  return now;
}

/// Mean loss per token, over batches spread evenly over the validation part, without gradients.
double Run::test() {
  const brrr::NoGradGuard guard;
  model_->eval();
  double sum = 0;
  tested_ = 0;
  const GptOptions& o = options_;
  const int64_t all = data_->validation_batches();
  // A batch of the data set holds all o.passes() passes of a step.
  const int64_t wanted = (o.eval_batches + o.passes() - 1) / o.passes();
  const int64_t n = wanted > 0 ? std::min(wanted, all) : all;
  for (int64_t i = 0; i < n; ++i) {
    const auto [x, y] = data_->validation_batch(i * all / n);
    for (int64_t row = 0; row < x.size(0); row += o.batch) {
      const int64_t rows = std::min(o.batch, x.size(0) - row);
      const Tensor part = evaluation_(x.narrow(0, row, rows), y.narrow(0, row, rows));
      sum += part.item<double>() * static_cast<double>(rows * o.model.block);
      tested_ += rows * o.model.block;
    }
  }
  model_->train();
  return sum / static_cast<double>(tested_);
}

std::string Run::result() {
  const double loss = test();
  return fmt::format(
      "validation loss {:.4f}, unigram entropy of the text {:.4f} (nats a token; {} tokens)", loss,
      data::unigram_entropy(text_), tested_);
}

void Run::introduce() const {
  const GptOptions& o = options_;
  fmt::print("GPT {} layers, {} heads, width {}, block {}, vocabulary {} ({}): {} parameters\n",
             o.model.layers, o.model.heads, o.model.width, o.model.block, vocabulary_,
             tokenizer_ ? tokenizer_->name() : "unknown tokenizer", model_->num_parameters());
  if (trains()) {
    fmt::print("{} tokens to train on, {} to validate on; {} a step; {} on {}, mode {}\n",
               data_->train().size(), data_->validation().size(),
               o.batch * o.passes() * o.model.block, o.dtype, brrr::name(device), o.mode);
  }
  std::fflush(stdout);
}

void Run::sample() const {
  const GptOptions& o = options_;
  if (o.sample == 0) return;
  fmt::print("sample of {} tokens:\n{}", o.sample, o.prompt);
  // Prints ids if the tokenizer is unknown.
  bool first = true;
  const auto print = [&](int64_t id) {
    const char* const gap = std::exchange(first, false) ? "" : " ";
    fmt::print("{}", tokenizer_ ? tokenizer_->decode({id}) : fmt::format("{}{}", gap, id));
    std::fflush(stdout);
  };
  brrr::models::generate(*model_, prompt_,
                         {.tokens = o.sample,
                          .temperature = o.temperature,
                          .top_k = o.top_k,
                          .top_p = o.top_p,
                          .seed = static_cast<uint64_t>(o.seed),
                          .mode = o.step_mode(),
                          .on_token = print});
  fmt::print("\n");
}

}  // namespace

int main(int argc, char** argv) {
  GptOptions o;
  return o.run(argc, argv, [&] {
    Run run(o);
    run.introduce();
    const int status = run.trains() ? run.train() : 0;
    if (status == 0) run.sample();
    return status;
  });
}
