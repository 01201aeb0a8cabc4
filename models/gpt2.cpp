#include "models/gpt2.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "core/check.h"
#include "core/text.h"
#include "models/file.h"
#include "models/safetensors.h"
#include "ops/pointwise_ops.h"

namespace brrr::models {

namespace {

using nlohmann::json;

constexpr std::string_view kPrefix = "transformer.";
constexpr const char* kHead = "lm_head.weight";
constexpr const char* kTable = "wte.weight";

// The model's parameters under the file's names (without its prefix) and in its layout, where the
// projections are Conv1D weights, [in, out]. The transposed views serve for reading and writing.
std::vector<NamedTensor> file_layout(const char* what, const GPT& gpt) {
  const GPTOptions& o = gpt.options();
  BRRR_CHECK(o.positions == "learned" && o.activation == "gelu" && o.norm == "layer" && o.bias,
             "{}: GPT-2 has learned positions, gelu, layer norms and biases; this GPT has {} "
             "positions, {}, {} norms and {}",
             what, o.positions, o.activation, o.norm, o.bias ? "biases" : "no biases");
  std::vector<NamedTensor> list;
  for (const auto& [name, p] : gpt.named_parameters()) {
    const bool projection = name.ends_with(".c_attn.weight") || name.ends_with(".c_proj.weight") ||
                            name.ends_with(".c_fc.weight");
    list.emplace_back(name, projection ? p.detach().t() : p.detach());
  }
  return list;
}

// The file's tensors without name prefix and without masks, converted to the model's dtype.
StateDict without_prefix(const std::string& path, const StateDict& file, DType dtype) {
  StateDict dict;
  for (const auto& [full, t] : file) {
    const std::string name = full.starts_with(kPrefix) ? full.substr(kPrefix.size()) : full;
    if (name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias")) continue;
    BRRR_CHECK(!dict.count(name), "load_gpt2: {} has {} twice, with and without \"{}\"", path,
               shown(name), kPrefix);
    dict[name] = is_floating(t.dtype()) ? t.to(dtype) : t;
  }
  return dict;
}

class Config {
 public:
  explicit Config(const std::string& path) : path_(path) {
    const InputFile file(path);
    BRRR_CHECK(file.size() <= 1 << 20, "gpt2_options: {} has {} bytes; that is no config.json",
               path, file.size());
    try {
      value_ = json::parse(file.read(0, file.size()));
    } catch (const json::exception& e) {
      fail("gpt2_options: {} is not JSON ({})", path, e.what());
    }
    BRRR_CHECK(value_.is_object(), "gpt2_options: {} is not an object", path);
  }

  int64_t size(const char* key) const {
    const auto it = value_.find(key);
    BRRR_CHECK(it != value_.end() && it->is_number_integer() && it->get<double>() > 0 &&
                   it->get<double>() < 1e9,
               "gpt2_options: {}: {} must be a positive size, got {}", path_, key, shown(it));
    return it->get<int64_t>();
  }
  /// A number, or a JSON boolean if T is bool; `otherwise` if the field is absent.
  template <class T> T get(const char* key, T otherwise) const {
    constexpr bool flag = std::is_same_v<T, bool>;
    const auto it = value_.find(key);
    if (it == value_.end()) return otherwise;
    BRRR_CHECK(flag ? it->is_boolean() : it->is_number(), "gpt2_options: {}: {} must be {}, got {}",
               path_, key, flag ? "true or false" : "a number", shown(it));
    return it->get<T>();
  }
  /// Throws unless the field is absent or one of `known`, which may include null.
  void expect(const char* key, const std::vector<json>& known) const {
    const auto it = value_.find(key);
    if (it == value_.end() || std::find(known.begin(), known.end(), *it) != known.end()) return;
    fail("gpt2_options: {}: {} is {}; GPT does {} only", path_, key, shown(it), json(known).dump());
  }

 private:
  std::string shown(const json::const_iterator& it) const {
    if (it == value_.end()) return "nothing";
    // Not dumped: a hostile file could nest deeper than the stack allows.
    if (it->is_structured()) return it->is_array() ? "a list" : "an object";
    return it->dump(-1, ' ', true, json::error_handler_t::replace).substr(0, 80);
  }
  std::string path_;
  json value_;
};

}  // namespace

GPTOptions gpt2_options(const std::string& path) {
  const Config config(path);
  GPTOptions o;
  o.vocab = config.size("vocab_size");
  o.block = config.size("n_positions");
  o.layers = config.size("n_layer");
  o.heads = config.size("n_head");
  o.width = config.size("n_embd");
  o.dropout = config.get("resid_pdrop", 0.1);
  o.tie_weights = config.get("tie_word_embeddings", true);
  config.expect("model_type", {"gpt2"});
  config.expect("activation_function", {"gelu_new", "gelu_pytorch_tanh"});
  config.expect("n_inner", {nullptr, 4 * o.width});
  config.expect("layer_norm_epsilon", {1e-5});
  config.expect("embd_pdrop", {o.dropout});
  config.expect("attn_pdrop", {o.dropout});
  config.expect("scale_attn_weights", {true});
  config.expect("scale_attn_by_inverse_layer_idx", {false});
  config.expect("add_cross_attention", {false});
  return o;
}

void load_gpt2(const std::string& path, GPT& gpt) {
  std::vector<NamedTensor> targets = file_layout("load_gpt2", gpt);
  const Tensor& table = targets.front().second;
  StateDict dict = without_prefix(path, load(path), table.dtype());
  const bool tied = gpt.options().tie_weights;
  const auto wte = dict.find(kTable), head = dict.find(kHead);
  if (tied && head != dict.end() && wte != dict.end()) {
    const Tensor &a = head->second, &b = wte->second;
    BRRR_CHECK(a.sizes() == b.sizes() && eq(a, b).all().item<bool>(),
               "load_gpt2: {}: {} differs from {}; make the GPT with tie_weights = false", path,
               kHead, kTable);
    dict.erase(head);
  } else if (!tied && head == dict.end() && wte != dict.end()) {
    dict[kHead] = wte->second;
  }
  check_state("load_gpt2: " + path, targets, dict, true);
  copy_state(targets, dict);
}

void save_gpt2(const std::string& path, const GPT& gpt) {
  StateDict dict;
  for (const auto& [name, t] : file_layout("save_gpt2", gpt)) {
    dict[name == kHead ? name : std::string(kPrefix) + name] = t;
  }
  // transformers rejects files whose metadata does not name a framework.
  save(path, dict, {{"format", "pt"}});
}

}  // namespace brrr::models
