#include "models/checkpoint.h"

#include <charconv>

#include "core/check.h"
#include "core/rng.h"

namespace brrr {

// 64-bit numbers as text: JSON readers turn numbers into doubles.
static constexpr const char* kStep = "brrr.step";
static constexpr const char* kSeed = "brrr.rng_seed";
static constexpr const char* kDraw = "brrr.rng_draw";

void save_checkpoint(const std::string& path, const TrainingState& s) {
  StateDict dict;
  if (s.model) add_with_prefix(dict, "model", s.model->state_dict());
  if (s.optimizer) add_with_prefix(dict, "optimizer", s.optimizer->state_dict());
  if (s.schedule) add_with_prefix(dict, "schedule", s.schedule->state_dict());
  if (s.loader) add_with_prefix(dict, "loader", s.loader->state_dict());
  if (s.scaler) add_with_prefix(dict, "scaler", s.scaler->state_dict());
  Metadata metadata = s.metadata;
  const RngState rng = rng_state();
  metadata[kStep] = std::to_string(s.step);
  metadata[kSeed] = std::to_string(rng.seed);
  metadata[kDraw] = std::to_string(rng.draw);
  save(path, dict, metadata);
}

template <class T>
static T take_number(const std::string& path, Metadata& metadata, const char* key) {
  const auto node = metadata.extract(key);
  BRRR_CHECK(!node.empty(),
             "load_checkpoint: {} has no {}: it is a model, not a whole checkpoint; "
             "use load",
             path, key);
  const std::string& text = node.mapped();
  T v{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), v);
  BRRR_CHECK(error == std::errc() && end == text.data() + text.size(),
             "load_checkpoint: {}: {} is \"{}\", not a number", path, key, text.substr(0, 40));
  return v;
}

template <class Part>
static StateDict checked(const std::string& path, const Part* part, const char* name,
                         const StateDict& all) {
  if (!part) return {};
  StateDict own = with_prefix(all, name);
  try {
    part->check_state_dict(own);
  } catch (const Error& e) {
    fail("load_checkpoint: {}: the {} does not fit: {}", path, name, e.what());
  }
  return own;
}

void load_checkpoint(const std::string& path, TrainingState& s) {
  Metadata metadata;
  const StateDict all = load(path, metadata);
  const auto step = take_number<int64_t>(path, metadata, kStep);
  const auto seed = take_number<uint64_t>(path, metadata, kSeed);
  const auto draw = take_number<uint64_t>(path, metadata, kDraw);
  BRRR_CHECK(step >= 0, "load_checkpoint: {}: the step is {}", path, step);
  const StateDict model = checked(path, s.model, "model", all);
  const StateDict optimizer = checked(path, s.optimizer, "optimizer", all);
  const StateDict schedule = checked(path, s.schedule, "schedule", all);
  const StateDict loader = checked(path, s.loader, "loader", all);
  const StateDict scaler = checked(path, s.scaler, "scaler", all);

  // Only now does anything change. The schedule sets the lr, the optimiser's own comes last.
  if (s.model) s.model->load_state_dict(model);
  if (s.schedule) s.schedule->load_state_dict(schedule);
  if (s.optimizer) s.optimizer->load_state_dict(optimizer);
  if (s.loader) s.loader->load_state_dict(loader);
  if (s.scaler) s.scaler->load_state_dict(scaler);
  set_rng_state({seed, draw});
  s.step = step;
  s.metadata = std::move(metadata);
}

}  // namespace brrr
