#include "examples/common/gpt_options.h"

#include <fmt/format.h>

#include "examples/common/options.h"

namespace examples {

namespace {

constexpr double kInfinite = std::numeric_limits<double>::max();
constexpr const char* kAbout =
    "Trains a GPT on a text and samples from it. Both modes give the same losses to the last bit.";

/// f(name, value) for every option that belongs to the run itself, and so to its checkpoint.
template <class Options, class F> void visit_kept(Options& o, const F& f) {
  f("tokenizer", o.tokenizer);
  f("dtype", o.dtype);
  f("block", o.block);
  f("layers", o.layers);
  f("heads", o.heads);
  f("width", o.width);
  f("positions", o.positions);
  f("activation", o.activation);
  f("norm", o.norm);
  f("dropout", o.dropout);
  f("steps", o.steps);
  f("batch", o.batch);
  f("accumulate", o.accumulate);
  f("lr", o.lr);
  f("warmup", o.warmup);
  f("weight-decay", o.weight_decay);
  f("clip", o.clip);
  f("seed", o.seed);
}

class Adder {
 public:
  explicit Adder(CLI::App& app) : app_(app) {}
  template <class T>
  void operator()(const char* name, T& v, const char* text, const CLI::Validator& check) const {
    app_.add_option(name, v, text)->check(check)->capture_default_str();
  }

 private:
  CLI::App& app_;
};

void add_run_options(CLI::App& app, GptOptions& o) {
  const Adder option(app);
  option("--mode", o.mode, "eager, graph, or auto: the faster of both",
         one_of({"eager", "graph", "auto"}));
  option("--device", o.device, "cpu or cuda", one_of({"cpu", "cuda"}));
  option("--dtype", o.dtype, "of matrix products; weights stay float32",
         one_of({"float32", "bfloat16", "float16"}));
  option("--steps", o.steps,
         "steps of the whole run, over which the schedule is laid out (0: only sample)",
         whole_number(0));
  option("--stop-at", o.stop_at, "stop after this step, to resume later (0: never)",
         whole_number(0));
  option("--checkpoint", o.checkpoint, "checkpoint (safetensors) to write at the end",
         output_file());
  option("--save-every", o.save_every, "also write it every so many steps (0: no)",
         whole_number(0));
  option("--resume", o.resume, "checkpoint to go on from, with the options it was made with",
         CLI::ExistingFile);
  option("--seed", o.seed, "of weights, batches, dropout and samples", whole_number(0));
  option("--threads", o.threads, "CPU threads (0: all cores)", whole_number(0));
  option("--log-every", o.log_every, "steps between printed lines", whole_number(1));
  option("--loss-csv", o.loss_csv, "write every step's loss to this file", output_file());
  option("--verify-every", o.verify_every, "check every n-th replay against eager (0: never)",
         whole_number(0));
  app.add_flag("--check-numerics", o.check_numerics,
               "slow: stop at the first operation that makes a NaN or infinity, and name it");
  app.add_flag("--compile-report", o.compile_report,
               "say what graph mode recorded, fused and replayed, and what it took");
  app.get_option("--save-every")->needs(app.get_option("--checkpoint"));
}

void add_data_options(CLI::App& app, GptOptions& o) {
  const Adder option(app);
  app.add_option("--data", o.data,
                 "a text, a .bin file of 16-bit tokens (llm.c, nanoGPT), a folder with train.bin "
                 "and val.bin, or a folder of sources; without it brrr's own sources, from within "
                 "their folder")
      ->check(CLI::ExistingPath);
  app.add_option("--tokenizer", o.tokenizer, "char, byte or gpt2 (default: char; gpt2 for .bin)")
      ->check(one_of({"char", "byte", "gpt2"}));
  app.add_option("--vocab", o.vocab, "GPT-2's vocab.json")->check(CLI::ExistingFile);
  app.add_option("--merges", o.merges, "GPT-2's merges.txt")->check(CLI::ExistingFile);
  option("--eval-every", o.eval_every, "steps between validation losses (0: at the end)",
         whole_number(0));
  option("--eval-batches", o.eval_batches,
         "batches of one, spread over the validation part (0: all of it)", whole_number(0));
  option("--sample", o.sample, "tokens to sample at the end", whole_number(0));
  app.add_option("--prompt", o.prompt, "what they go on from (default: a new line)");
  option("--temperature", o.temperature, "0 takes the likeliest token", real_number(0, kInfinite));
  option("--top-k", o.top_k, "only the k likeliest tokens (0: all)", whole_number(0));
  option("--top-p", o.top_p, "only the likeliest that together reach this probability",
         real_number(1e-9, 1));
  app.get_option("--vocab")->needs(app.get_option("--merges"));
  app.get_option("--merges")->needs(app.get_option("--vocab"));
}

void add_model_options(CLI::App& app, GptOptions& o) {
  const Adder option(app);
  option("--layers", o.layers, "transformer blocks", whole_number(1));
  option("--heads", o.heads, "attention heads in each", whole_number(1));
  option("--width", o.width, "of the residual stream", whole_number(1));
  option("--block", o.block, "the longest context, in tokens", whole_number(1));
  option("--dropout", o.dropout, "probability", real_number(0, 0.99));
  option("--positions", o.positions, "learned or rotary", one_of({"learned", "rotary"}));
  option("--activation", o.activation, "gelu or swiglu", one_of({"gelu", "swiglu"}));
  option("--norm", o.norm, "layer or rms", one_of({"layer", "rms"}));
  option("--batch", o.batch, "sequences in a forward pass", whole_number(1));
  option("--accumulate", o.accumulate, "forward and backward passes in a step", whole_number(1));
  option("--lr", o.lr, "highest learning rate; it falls to a tenth along a cosine",
         real_number(0, kInfinite));
  app.add_option("--warmup", o.warmup, "steps in which it rises (default: 5 % of all)")
      ->check(whole_number(0));
  option("--weight-decay", o.weight_decay, "of matrices; nothing else decays",
         real_number(0, kInfinite));
  option("--clip", o.clip, "largest norm of all gradients together (0: any)",
         real_number(0, kInfinite));
}

bool read_once(int argc, char** argv, GptOptions& o, int& exit_code, CLI::App& app) {
  o = {};
  add_run_options(app, o);
  add_data_options(app, o);
  add_model_options(app, o);
  return parse(app, argc, argv, exit_code);
}

// Options that the command line leaves out, as the checkpoint has them.
std::vector<std::string> from_checkpoint(const CLI::App& app, const GptOptions& o) {
  const brrr::Metadata& saved = o.saved;
  std::vector<std::string> words;
  const auto add = [&](const std::string& key) {
    if (app.count("--" + key) == 0) words.push_back("--" + key + "=" + saved.at(key));
  };
  visit_kept(o, [&](const std::string& key, const auto&) {
    if (!saved.count(key)) {
      throw brrr::Error(fmt::format("--resume {}: it is no checkpoint of train_gpt: it has no {}",
                                    o.resume, key));
    }
    add(key);
  });
  // An own text is found again unless another is named; whether it is the same is checked later.
  if (saved.count("data") && !saved.at("data").empty() && o.steps > 0) add("data");
  return words;
}

void check_same(const GptOptions& o, bool steps_differ) {
  for (const auto& [key, value] : kept_options(o)) {
    const std::string& saved = o.saved.at(key);
    if (saved == value || (key == "steps" && steps_differ)) continue;
    throw brrr::Error(fmt::format("--resume {}: it was made with {} {}, not {}; leave that out",
                                  o.resume, key, saved, value));
  }
}

}  // namespace

brrr::DType GptOptions::compute_dtype() const {
  return dtype == "bfloat16"  ? brrr::kBFloat16
         : dtype == "float16" ? brrr::kFloat16
                              : brrr::kFloat32;
}

brrr::models::GPTOptions GptOptions::model(int64_t vocabulary) const {
  return {.vocab = vocabulary,
          .block = block,
          .layers = layers,
          .heads = heads,
          .width = width,
          .dropout = dropout,
          .positions = positions,
          .activation = activation,
          .norm = norm};
}

brrr::Metadata kept_options(const GptOptions& o) {
  brrr::Metadata all;
  visit_kept(o, [&](const char* key, const auto& v) { all[key] = fmt::format("{}", v); });
  all["warmup"] = std::to_string(o.warmup_steps());
  return all;
}

bool read_options(int argc, char** argv, GptOptions& o, int& exit_code) {
  CLI::App app(kAbout, "train_gpt");
  if (!read_once(argc, argv, o, exit_code, app)) return false;
  if (o.steps == 0 && (o.resume.empty() || o.sample == 0)) {
    throw brrr::Error("--steps 0 only samples: give --resume and --sample with it");
  }
  if (o.resume.empty()) return true;
  brrr::Metadata saved;
  brrr::load(o.resume, saved);  // Checks the file before anything is believed.
  o.saved = saved;
  std::vector<std::string> words(argv, argv + argc);
  for (std::string& w : from_checkpoint(app, o)) words.push_back(std::move(w));
  std::vector<char*> all;
  for (std::string& w : words) all.push_back(w.data());
  CLI::App again(kAbout, "train_gpt");
  if (!read_once(static_cast<int>(all.size()), all.data(), o, exit_code, again)) return false;
  o.saved = std::move(saved);
  check_same(o, o.steps == 0);
  return true;
}

}  // namespace examples
