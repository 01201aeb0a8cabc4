#include "examples/common/gpt_run.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "examples/common/options.h"

namespace examples {

namespace data = brrr::data;
namespace fs = std::filesystem;

namespace {

// Metadata of a checkpoint beside the options.
constexpr const char* kVocabulary = "vocabulary";
constexpr const char* kTokenizer = "tokenizer-state";

bool has_train_bin(const std::string& path) {
  return fs::is_directory(path) && fs::exists(fs::path(path) / "train.bin");
}
bool is_tokens(const std::string& path) {
  return fs::path(path).extension() == ".bin" || has_train_bin(path);
}

std::string read_text(const GptOptions& o) {
  if (o.data.empty()) {
    if (!fs::exists("brrr.h") || !fs::exists("models/gpt.h")) {
      throw brrr::Error(
          "no --data, and brrr's own sources are not here: give a text with --data, or start "
          "train_gpt in brrr's folder");
    }
    return data::load_sources(".");
  }
  if (fs::is_directory(o.data)) return data::load_sources(o.data);
  return o.tokenizer == "byte" ? data::load_bytes(o.data) : data::load_text(o.data);
}

// The tokenizer of a new run; null if only the size of the vocabulary is known.
std::unique_ptr<data::Tokenizer> new_tokenizer(const GptOptions& o, const std::string& text) {
  if (o.tokenizer == "byte") return std::make_unique<data::ByteTokenizer>();
  if (o.tokenizer == "gpt2") {
    if (!o.vocab.empty()) return std::make_unique<data::GPT2Tokenizer>(o.vocab, o.merges);
    if (is_tokens(o.data)) return nullptr;
    throw brrr::Error("--tokenizer gpt2 needs its files: --vocab vocab.json --merges merges.txt");
  }
  if (is_tokens(o.data)) {
    throw brrr::Error(fmt::format(
        "--data {}: it holds token ids, which a char tokenizer does not explain; use --tokenizer "
        "gpt2 or byte",
        o.data));
  }
  return std::make_unique<data::CharTokenizer>(text);
}

// The tokenizer that a checkpoint was made with; files that are given must be the same.
std::unique_ptr<data::Tokenizer> saved_tokenizer(const GptOptions& o, int64_t vocabulary) {
  const brrr::Metadata& saved = o.saved;
  const bool known = saved.count(kTokenizer) > 0;
  auto tokenizer = known ? data::tokenizer_from_state(saved.at(kTokenizer)) : nullptr;
  if (!o.vocab.empty()) {
    auto given = std::make_unique<data::GPT2Tokenizer>(o.vocab, o.merges);
    if (given->vocab_size() > vocabulary) {
      throw brrr::Error(fmt::format("--vocab {}: {} tokens, but the model in {} has only {}",
                                    o.vocab, given->vocab_size(), o.resume, vocabulary));
    }
    if (known && given->state() != tokenizer->state()) {
      throw brrr::Error(
          fmt::format("--vocab {}: {} was made with another vocabulary or other "
                      "merges; leave the two files out",
                      o.vocab, o.resume));
    }
    return given;
  }
  if (tokenizer && tokenizer->vocab_size() > vocabulary) {
    throw brrr::Error(fmt::format("{}: its tokenizer has {} tokens, its model only {}", o.resume,
                                  tokenizer->vocab_size(), vocabulary));
  }
  return tokenizer;
}

int64_t number_of(const brrr::Metadata& saved, const char* key, const std::string& path) {
  const auto it = saved.find(key);
  if (it == saved.end() || it->second.empty() || it->second.size() > 9 ||
      it->second.find_first_not_of("0123456789") != std::string::npos) {
    throw brrr::Error(
        fmt::format("{}: it is no checkpoint of train_gpt: {} is missing or no "
                    "number",
                    path, key));
  }
  return std::stoll(it->second);
}

// Texts become tokens, and tokens windows.
void make_data(GptRun& run, const GptOptions& o, const std::string& text) {
  const data::TokenDatasetOptions options = {.vocab = run.vocabulary,
                                             .block = o.block,
                                             .batch = o.batch * o.accumulate,
                                             .seed = static_cast<uint64_t>(o.seed)};
  if (has_train_bin(o.data)) {
    const fs::path folder = o.data;
    run.text = data::map_tokens((folder / "train.bin").string());
    const data::Tokens validation = data::map_tokens((folder / "val.bin").string());
    run.data = std::make_unique<data::TokenDataset>(run.text, validation, options);
    return;
  }
  run.text =
      is_tokens(o.data) ? data::map_tokens(o.data) : data::Tokens(run.tokenizer->encode(text));
  run.data = std::make_unique<data::TokenDataset>(run.text, options);
}

void make_training(GptRun& run, const GptOptions& o) {
  run.optimizer = std::make_unique<brrr::optim::AdamW>(
      run.model->parameters(),
      brrr::optim::AdamWOptions{.lr = o.lr,
                                .betas = {0.9, 0.99},
                                .weight_decay = o.weight_decay,
                                .decay = [](const brrr::Tensor& p) { return p.dim() >= 2; }});
  run.schedule = std::make_unique<brrr::optim::WarmupCosineLR>(*run.optimizer, o.warmup_steps(),
                                                               o.steps, o.lr / 10);
  if (o.dtype == "float16") {
    run.scaler = std::make_unique<brrr::optim::GradScaler>(
        brrr::optim::GradScalerOptions{.device = run.device});
  }
}

// Before the first step, so that a prompt that cannot be taken costs no run.
std::vector<int64_t> encode_prompt(const GptRun& run, const GptOptions& o) {
  if (o.sample == 0) return {};
  if (!run.tokenizer) {
    if (o.prompt.empty()) return {0};
    throw brrr::Error("--prompt: no tokenizer is known; give --vocab and --merges");
  }
  try {
    return run.tokenizer->encode(o.prompt.empty() ? "\n" : o.prompt);
  } catch (const brrr::Error& e) {
    if (o.prompt.empty()) return {0};
    throw brrr::Error(fmt::format("--prompt: {}", e.what()));
  }
}

// A slip of the pen must not fill the memory for minutes before it fails.
void check_sizes(const GptOptions& o, int64_t vocabulary) {
  if (o.accumulate > INT32_MAX / std::min<int64_t>(o.batch, INT32_MAX)) {
    throw brrr::Error(fmt::format("--batch {} times --accumulate {} is too much for a step",
                                  o.batch, o.accumulate));
  }
  const auto width = static_cast<double>(o.width);
  const double parameters = 12.0 * static_cast<double>(o.layers) * width * width +
                            static_cast<double>(vocabulary + o.block) * width;
  // Weight, gradient and AdamW's two moments, four bytes each.
  const double needed = 16 * parameters;
  const double memory =
      static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
  if (needed <= memory) return;
  throw brrr::Error(
      fmt::format("--layers {}, --width {}: about {:.3g} parameters take {:.3g} GB in "
                  "training; this machine has {:.3g} GB",
                  o.layers, o.width, parameters, needed * 1e-9, memory * 1e-9));
}

}  // namespace

brrr::TrainingState GptRun::state(brrr::Metadata metadata) const {
  brrr::TrainingState s{.model = model.get(),
                        .optimizer = optimizer.get(),
                        .schedule = schedule.get(),
                        .loader = data.get(),
                        .step = step,
                        .metadata = std::move(metadata)};
  s.scaler = scaler.get();
  return s;
}

std::unique_ptr<GptRun> make_run(GptOptions& o) {
  auto run = std::make_unique<GptRun>();
  run->device = device_of(o.device);
  if (o.tokenizer.empty()) o.tokenizer = is_tokens(o.data) ? "gpt2" : "char";
  if (o.tokenizer != "gpt2" && !o.vocab.empty()) {
    throw brrr::Error(
        fmt::format("--vocab and --merges are gpt2's, the tokenizer is {}", o.tokenizer));
  }
  const bool train = o.steps > 0;
  const std::string text = train && !is_tokens(o.data) ? read_text(o) : "";
  if (o.resume.empty()) {
    run->tokenizer = new_tokenizer(o, text);
    run->vocabulary = run->tokenizer ? run->tokenizer->vocab_size() : 50257;
  } else {
    run->vocabulary = number_of(o.saved, kVocabulary, o.resume);
    run->tokenizer = saved_tokenizer(o, run->vocabulary);
    if (!run->tokenizer && train && !is_tokens(o.data)) {
      throw brrr::Error(
          fmt::format("--resume {}: no tokenizer is known for a text; give --vocab "
                      "and --merges, or the .bin file with --data",
                      o.resume));
    }
  }
  run->prompt = encode_prompt(*run, o);
  check_sizes(o, run->vocabulary);
  if (train) make_data(*run, o, text);
  brrr::manual_seed(static_cast<uint64_t>(o.seed));
  run->model = std::make_unique<brrr::models::GPT>(o.model(run->vocabulary));
  run->model->to(run->device);
  if (train) make_training(*run, o);
  if (!o.resume.empty()) {
    brrr::TrainingState state = run->state();
    brrr::load_checkpoint(o.resume, state);
    run->step = state.step;
  }
  return run;
}

void save_run(const GptRun& run, const GptOptions& o) {
  if (o.checkpoint.empty()) return;
  brrr::Metadata metadata = kept_options(o);
  metadata["data"] = o.data;
  metadata[kVocabulary] = std::to_string(run.vocabulary);
  if (run.tokenizer) metadata[kTokenizer] = run.tokenizer->state();
  brrr::save_checkpoint(o.checkpoint, run.state(std::move(metadata)));
}

std::string decoded(const GptRun& run, const std::vector<int64_t>& ids) {
  if (run.tokenizer) return run.tokenizer->decode(ids);
  return fmt::format("{}", fmt::join(ids, " "));
}

}  // namespace examples
