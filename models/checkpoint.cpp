#include "models/checkpoint.h"

#include <fmt/ranges.h>

#include <bit>
#include <charconv>
#include <exception>
#include <functional>
#include <string_view>
#include <vector>

#include "core/check.h"
#include "core/hash.h"
#include "core/rng.h"
#include "core/text.h"
#include "ops/dist.h"
#include "ops/dist_ops.h"
#include "ops/factory_ops.h"
#include "ops/kinds/exchange.h"

namespace brrr {

// Metadata keys. Their values are strings, because JSON readers convert numbers to double.
static constexpr const char* kStep = "brrr.step";
static constexpr const char* kSeed = "brrr.rng_seed";
static constexpr const char* kDraw = "brrr.rng_draw";

// Calls f(name, part) for each non-null part. Loading the schedule sets the lr, which the optimiser
// then overrides by its own. The model is last: loading it needs no memory, or no more than the
// optimiser did.
template <class F> static void each_part(const TrainingState& s, const F& f) {
  if (s.loader) f("loader", *s.loader);
  if (s.scaler) f("scaler", *s.scaler);
  if (s.schedule) f("schedule", *s.schedule);
  if (s.optimizer) f("optimizer", *s.optimizer);
  if (s.model) f("model", *s.model);
}

// The entries "prefix.name" of `dict`, as "name".
static StateDict with_prefix(const StateDict& dict, const std::string& prefix) {
  StateDict part;
  const std::string start = prefix + ".";
  for (auto it = dict.lower_bound(start); it != dict.end() && it->first.starts_with(start); ++it) {
    part[it->first.substr(start.size())] = it->second;
  }
  return part;
}

void save_checkpoint(const std::string& path, const TrainingState& s) {
  StateDict dict;
  each_part(s, [&](const std::string& name, const auto& part) {
    for (const auto& [key, t] : part.state_dict()) dict[name + "." + key] = t;
  });
  dist::on_first_rank("save_checkpoint", [&] {  // An error on rank 0 throws on all ranks.
    BRRR_CHECK(s.step >= 0, "save_checkpoint: {}: the step is {}", path, s.step);
    for (const char* own : {kStep, kSeed, kDraw}) {
      BRRR_CHECK(
          !s.metadata.count(own),
          "save_checkpoint: {}: the metadata has \"{}\", a name of the checkpoint's own; give "
          "it another",
          path, own);
    }
    Metadata metadata = s.metadata;
    const RngState rng = rng_state();
    metadata[kStep] = std::to_string(s.step);
    metadata[kSeed] = std::to_string(rng.seed);
    metadata[kDraw] = std::to_string(rng.draw);
    save(path, dict, metadata);
  });
}

template <class T>
static T parse_metadata(const std::string& path, Metadata& metadata, const char* key) {
  const auto node = metadata.extract(key);
  BRRR_CHECK(!node.empty(),
             "load_checkpoint: {} has no {}: it is a model, not a whole checkpoint; use load", path,
             key);
  const std::string& text = node.mapped();
  T v{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), v);
  BRRR_CHECK(error == std::errc() && end == text.data() + text.size(),
             "load_checkpoint: {}: {} is \"{}\", not a number", path, key, shown(text, 40));
  return v;
}

// A hash of everything in a checkpoint.
static uint64_t content_hash(const StateDict& dict, const Metadata& metadata) {
  Fnv sum;
  const auto add = [&](std::string_view bytes) { sum.add(std::hash<std::string_view>{}(bytes)); };
  for (const auto& [name, t] : dict) {
    add(name);
    add(describe(t));
    add({static_cast<const char*>(t.data_ptr()),
         static_cast<size_t>(t.numel()) * itemsize(t.dtype())});
  }
  for (const auto& [key, value] : metadata) {
    add(key);
    add(value);
  }
  return sum.hash;
}

// Loads the file and checks that all ranks have the same content: ranks that resumed from different
// files would silently train different models.
static StateDict load_same_file(const std::string& path, Metadata& metadata) {
  if (dist::size() == 1) return load(path, metadata);
  StateDict dict;
  std::exception_ptr failure;
  std::vector<int64_t> mine = {0, 0};  // Whether it was loaded, and its hash.
  try {
    dict = load(path, metadata);
    mine = {1, std::bit_cast<int64_t>(content_hash(dict, metadata))};
  } catch (...) {
    failure = std::current_exception();
  }
  const std::vector<int64_t> all = dist::all_gather(tensor(mine)).to_vector<int64_t>();
  if (failure) std::rethrow_exception(failure);
  std::vector<size_t> none, other;
  for (size_t r = 0; r < all.size() / 2; ++r) {
    if (all[2 * r] == 0) none.push_back(r);
    if (all[2 * r + 1] != all[1]) other.push_back(r);
  }
  constexpr const char* mend = "the ranks must read the same file: share its folder or copy it";
  BRRR_CHECK(none.empty(), "load_checkpoint: {}: rank {} cannot load it; {}", path,
             fmt::join(none, ", "), mend);
  BRRR_CHECK(other.empty(), "load_checkpoint: {}: rank {} reads another file than rank 0; {}", path,
             fmt::join(other, ", "), mend);
  return dict;
}

void load_checkpoint(const std::string& path, TrainingState& s) {
  Metadata metadata;
  const StateDict all = load_same_file(path, metadata);
  const auto step = parse_metadata<int64_t>(path, metadata, kStep);
  const auto seed = parse_metadata<uint64_t>(path, metadata, kSeed);
  const auto draw = parse_metadata<uint64_t>(path, metadata, kDraw);
  BRRR_CHECK(step >= 0, "load_checkpoint: {}: the step is {}", path, step);
  const auto check = [&](const char* name, const auto& part) {
    try {
      part.check_state_dict(with_prefix(all, name));
    } catch (const Error& e) {
      fail("load_checkpoint: {}: the {} does not fit: {}", path, name, e.what());
    }
  };
  if (s.model) check("model", *s.model);  // First: another model's optimiser would not fit either.
  each_part(s, check);
  // Everything fits: change the state.
  each_part(s, [&](const char* name, auto& part) { part.load_state_dict(with_prefix(all, name)); });
  set_rng_state({seed, draw});
  s.step = step;
  s.metadata = std::move(metadata);
}

}  // namespace brrr
