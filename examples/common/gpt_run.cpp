#include "examples/common/gpt_run.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "core/check.h"

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
    BRRR_CHECK(fs::exists("brrr.h") && fs::exists("models/gpt.h"),
               "no --data, and brrr's own sources are not here: give a text with --data, or start "
               "train_gpt in brrr's folder");
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
    BRRR_CHECK(is_tokens(o.data),
               "--tokenizer gpt2 needs its files: --vocab vocab.json --merges merges.txt");
    return nullptr;
  }
  BRRR_CHECK(!is_tokens(o.data),
             "--data {}: it holds token ids, which a char tokenizer does not explain; use "
             "--tokenizer gpt2 or byte",
             o.data);
  return std::make_unique<data::CharTokenizer>(text);
}

// The tokenizer that a checkpoint was made with; files that are given must be the same.
std::unique_ptr<data::Tokenizer> saved_tokenizer(const GptOptions& o, int64_t vocabulary) {
  const auto state = o.saved.find(kTokenizer);
  const bool known = state != o.saved.end();
  auto tokenizer = known ? data::tokenizer_from_state(state->second) : nullptr;
  if (!o.vocab.empty()) {
    auto given = std::make_unique<data::GPT2Tokenizer>(o.vocab, o.merges);
    BRRR_CHECK(given->vocab_size() <= vocabulary,
               "--vocab {}: {} tokens, but the model in {} has only {}", o.vocab,
               given->vocab_size(), o.resume, vocabulary);
    BRRR_CHECK(!known || given->state() == tokenizer->state(),
               "--vocab {}: {} was made with another vocabulary or other merges; leave the two "
               "files out",
               o.vocab, o.resume);
    return given;
  }
  BRRR_CHECK(!tokenizer || tokenizer->vocab_size() <= vocabulary,
             "{}: its tokenizer has {} tokens, its model only {}", o.resume,
             tokenizer->vocab_size(), vocabulary);
  return tokenizer;
}

int64_t number_of(const brrr::Metadata& saved, const char* key, const std::string& path) {
  const auto it = saved.find(key);
  BRRR_CHECK(it != saved.end() && !it->second.empty() && it->second.size() <= 9 &&
                 it->second.find_first_not_of("0123456789") == std::string::npos,
             "{}: it is no checkpoint of train_gpt: {} is missing or no number", path, key);
  return std::stoll(it->second);
}

// A slip of the pen must not fill the memory for minutes before it fails.
void check_sizes(const GptOptions& o, int64_t vocabulary) {
  BRRR_CHECK(o.passes() <= INT32_MAX / std::min<int64_t>(o.batch, INT32_MAX),
             "--batch {} times {} passes is too much for a step", o.batch, o.passes());
  const auto width = static_cast<double>(o.model.width);
  const double parameters = 12.0 * static_cast<double>(o.model.layers) * width * width +
                            static_cast<double>(vocabulary + o.model.block) * width;
  // Weight, gradient and AdamW's two moments, four bytes each.
  const double needed = 16 * parameters;
  const double memory =
      static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
  BRRR_CHECK(needed <= memory,
             "--layers {}, --width {}: about {:.3g} parameters take {:.3g} GB in training; this "
             "machine has {:.3g} GB",
             o.model.layers, o.model.width, parameters, needed * 1e-9, memory * 1e-9);
}

}  // namespace

GptRun::GptRun(GptOptions& o) : Training(o), options(o) {
  device = device_of(o.device);
  if (o.tokenizer.empty()) o.tokenizer = is_tokens(o.data) ? "gpt2" : "char";
  BRRR_CHECK(o.tokenizer == "gpt2" || o.vocab.empty(),
             "--vocab and --merges are gpt2's, the tokenizer is {}", o.tokenizer);
  const bool trains = o.steps > 0;
  const std::string characters = trains && !is_tokens(o.data) ? read_text(o) : "";
  find_tokenizer(characters);
  prompt = encode_prompt();
  check_sizes(o, vocabulary);
  if (trains) make_data(characters);
  brrr::manual_seed(static_cast<uint64_t>(o.seed));
  o.model.vocab = vocabulary;
  model = std::make_unique<brrr::models::GPT>(o.model);
  model->to(device);
  if (trains) make_training();
  set_parts(*model, data.get());
  resume();
}

void GptRun::find_tokenizer(const std::string& characters) {
  const GptOptions& o = options;
  if (o.resume.empty()) {
    tokenizer = new_tokenizer(o, characters);
    vocabulary = tokenizer ? tokenizer->vocab_size() : 50257;
    return;
  }
  vocabulary = number_of(o.saved, kVocabulary, o.resume);
  tokenizer = saved_tokenizer(o, vocabulary);
  BRRR_CHECK(tokenizer || o.steps == 0 || is_tokens(o.data),
             "--resume {}: no tokenizer is known for a text; give --vocab and --merges, or the "
             ".bin file with --data",
             o.resume);
}

// Texts become tokens, and tokens windows.
void GptRun::make_data(const std::string& characters) {
  const GptOptions& o = options;
  const data::TokenDatasetOptions sizes = {.vocab = vocabulary,
                                           .block = o.model.block,
                                           .batch = o.batch * o.passes(),
                                           .seed = static_cast<uint64_t>(o.seed)};
  if (has_train_bin(o.data)) {
    text = data::map_tokens(o.data + "/train.bin");
    const data::Tokens validation = data::map_tokens(o.data + "/val.bin");
    data = std::make_unique<data::TokenDataset>(text, validation, sizes);
    return;
  }
  text = is_tokens(o.data) ? data::map_tokens(o.data) : data::Tokens(tokenizer->encode(characters));
  data = std::make_unique<data::TokenDataset>(text, sizes);
}

void GptRun::make_training() {
  const GptOptions& o = options;
  parallel = std::make_unique<brrr::dist::DataParallel>(*model, o.parallel());
  optimizer = std::make_unique<brrr::optim::AdamW>(
      model->parameters(),
      brrr::optim::AdamWOptions{.lr = o.lr,
                                .betas = {0.9, 0.99},
                                .weight_decay = o.weight_decay,
                                .decay = [](const brrr::Tensor& p) { return p.dim() >= 2; }});
  schedule =
      std::make_unique<brrr::optim::WarmupCosineLR>(*optimizer, o.warmup, o.steps, o.lr / 10);
  if (o.dtype != "float16") return;
  scaler =
      std::make_unique<brrr::optim::GradScaler>(brrr::optim::GradScalerOptions{.device = device});
}

// Before the first step, so that a prompt that cannot be taken costs no run.
std::vector<int64_t> GptRun::encode_prompt() const {
  const std::string& given = options.prompt;
  if (options.sample == 0) return {};
  BRRR_CHECK(tokenizer || given.empty(),
             "--prompt: no tokenizer is known; give --vocab and --merges");
  try {
    if (tokenizer) return tokenizer->encode(given.empty() ? "\n" : given);
  } catch (const brrr::Error& e) {
    if (!given.empty()) brrr::fail("--prompt: {}", e.what());
  }
  return {0};
}

brrr::Metadata GptRun::notes() const {
  brrr::Metadata notes = {{"data", options.data}, {kVocabulary, std::to_string(vocabulary)}};
  if (tokenizer) notes[kTokenizer] = tokenizer->state();
  return notes;
}

std::string GptRun::decoded(const std::vector<int64_t>& ids) const {
  if (tokenizer) return tokenizer->decode(ids);
  return fmt::format("{}", fmt::join(ids, " "));
}

}  // namespace examples
