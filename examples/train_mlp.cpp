// Trains an MLP to read digits, eagerly or as a graph: the same code, the same bits.
#include <brrr/brrr.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/check.h"
#include "examples/common/training.h"

using brrr::Tensor;
using namespace examples;
namespace data = brrr::data;

namespace {

constexpr const char* kDataHash = "data-hash";  // A key of a checkpoint's metadata.

struct Options : TrainingOptions {
  std::string data, optimizer = "adamw";
  std::vector<int64_t> hidden = {256, 128};
  int64_t images = 20000;
  double dropout = 0;

  Options();
  void adapt(brrr::Metadata& saved) const override {
    TrainingOptions::adapt(saved);
    saved.emplace("images", std::to_string(images));  // Missing in older checkpoints.
  }
  bool reads(const std::filesystem::path&, const std::filesystem::path& file) const override {
    return file.string().ends_with("-ubyte") && !file.has_parent_path();
  }
};

Options::Options()
    : TrainingOptions(
          "Trains an MLP to read digits. Both modes give the same losses to the last bit.",
          "train_mlp") {
  steps = 3000, batch = 64, log_every = 250, lr = 2e-3;
  saved_options_ = {"hidden", "optimizer", "batch",   "accumulate", "seed",
                    "steps",  "lr",        "dropout", "images"};
  sizes_ = {"hidden"};
  add_place();
  add_input("--data", data, "folder with MNIST's four IDX files; without it digits are generated",
            existing_folder());
  add("--images", images, "how many digits to generate for training", whole_number(1, INT32_MAX));
  add_batch("images");
  add_steps("steps of the whole run, over which the schedule is laid out", 1);
  add("--lr", lr, "highest learning rate; it rises for 5 % of the steps, then falls to 0",
      real_number(0));
  add("--seed", seed, "of weights, order and dropout", whole_number(0));
  add("--hidden", hidden, "sizes of the hidden layers", whole_number(1));
  add("--optimizer", optimizer, "adamw or sgd (momentum 0.9)", one_of({"adamw", "sgd"}));
  add("--dropout", dropout, "probability after each hidden layer", real_number(0, 0.99));
  add_saving("--save");
  add("--eval-every", eval_every, "steps between tests on held-out images (0: at the end)",
      whole_number(0));
  flag("--explain", explain, "say what graph mode recorded, fused and replayed");
  saved_defaults_.emplace_back("data");
}

class Run : public Training {
 public:
  explicit Run(const Options& o) : Training(o, {.mode = o.step_mode()}), options_(o) {
    device = device_of(o.device);
    brrr::manual_seed(static_cast<uint64_t>(o.seed));
    read_data();
    check_data();
    make_model();
    restore(*model_, loader_.get());
  }

  void introduce() const {
    fmt::print("MLP {}, {} parameters, {} on {}, mode {}\n", fmt::join(sizes_, "-"),
               model_->num_parameters(), options_.optimizer, brrr::name(device), options_.mode);
  }

 private:
  void read_data() {
    // Held-out digits have their own seed, which no training run uses.
    const auto part = [&](bool train) {
      if (!options_.data.empty()) return data::read_idx_dataset(options_.data, train);
      return train ? data::digits(options_.images, 0) : data::digits(4000, 0x7e57);
    };
    train_ = part(true);
    test_ = part(false);
    BRRR_CHECK(test_.images.size(1) == train_.images.size(1),
               "--data: training and test images differ in size");
    train_ = train_.to(device);
    test_ = test_.to(device);
  }

  void make_model() {
    const Options& o = options_;
    sizes_ = {train_.images.size(1)};
    sizes_.insert(sizes_.end(), o.hidden.begin(), o.hidden.end());
    sizes_.push_back(std::max(train_.classes, test_.classes));
    o.check_step();
    double parameters = 0;
    for (size_t k = 1; k < sizes_.size(); ++k) {
      parameters += (static_cast<double>(sizes_[k - 1]) + 1) * static_cast<double>(sizes_[k]);
    }
    o.check_memory(fmt::format("--hidden {}", fmt::join(o.hidden, ",")), parameters);
    model_ = std::make_unique<brrr::models::MLP>(
        brrr::models::MLPOptions{.sizes = sizes_, .activation = "relu", .dropout = o.dropout});
    model_->to(device);
    parallel = std::make_unique<brrr::dist::DataParallel>(*model_, o.parallel());
    if (o.optimizer == "adamw") {
      optimizer = std::make_unique<brrr::optim::AdamW>(
          model_->parameters(), brrr::optim::AdamWOptions{.lr = o.lr, .weight_decay = 0.05});
    } else {
      optimizer = std::make_unique<brrr::optim::SGD>(
          model_->parameters(),
          brrr::optim::SGDOptions{.lr = o.lr, .momentum = 0.9, .weight_decay = 1e-4});
    }
    schedule = std::make_unique<brrr::optim::WarmupCosineLR>(*optimizer, o.steps / 20, o.steps);
    loader_ = std::make_unique<data::Loader>(
        train_, data::LoaderOptions{.batch = o.batch * o.passes(),
                                    .seed = static_cast<uint64_t>(o.seed),
                                    .drop_last = o.passes() > 1});
  }

  double advance(RunLog& log, bool look) override {
    const auto [x, y] = loader_->next();
    taken_ = static_cast<double>(x.size(0));
    log.add(step_(parallel->part(x), parallel->part(y))[0]);
    return look ? finite_loss(log, step + 1) : 0;
  }

  std::vector<Tensor> training_step(const Tensor& x, const Tensor& y) override {
    optimizer->zero_grad();
    const Tensor loss = add_gradients(x, y);
    optimizer->step();
    return {loss};
  }
  Tensor loss_of(const Tensor& x, const Tensor& y) override {
    return brrr::cross_entropy((*model_)(x), y);
  }

  double test() override {
    brrr::NoGradGuard guard;
    model_->eval();
    double right = 0;
    const int64_t n = test_.size(), most = 1000;
    for (int64_t at = 0; at < n; at += most) {
      const int64_t end = std::min(n, at + most);
      right += data::accuracy((*model_)(test_.images.slice(0, at, end)),
                              test_.labels.slice(0, at, end)) *
               static_cast<double>(end - at);
    }
    model_->train();
    return 100 * right / static_cast<double>(n);
  }

  Unit unit() const override { return {"images", taken_, "accuracy", "{:.2f} %"}; }
  std::string result() override {
    return fmt::format("held-out accuracy {:.2f} %  ({} images)", test(), test_.size());
  }
  int64_t batches() const override { return loader_->position(); }
  uint64_t data_hash() const override {
    if (!hash_) hash_ = checksum({train_.images, train_.labels});
    return *hash_;
  }
  brrr::Metadata notes() const override {
    return {{"data", options_.data}, {kDataHash, fmt::format("{:016x}", data_hash())}};
  }
  void check_data() const {
    const auto was = options_.saved.find(kDataHash);
    BRRR_CHECK(options_.resume.empty() || was == options_.saved.end() ||
                   was->second == fmt::format("{:016x}", data_hash()),
               "--resume {}: it was trained on other images; give the --data that it had",
               options_.resume);
  }

  const Options& options_;
  data::Dataset train_, test_;
  std::vector<int64_t> sizes_;  // Of the model.
  double taken_ = 0;            // Images of the last step.
  mutable std::optional<uint64_t> hash_;
  std::unique_ptr<brrr::models::MLP> model_;
  std::unique_ptr<data::Loader> loader_;
};

}  // namespace

int main(int argc, char** argv) {
  Options o;
  return o.run(argc, argv, [&] {
    Run run(o);
    run.introduce();
    return run.train();
  });
}
