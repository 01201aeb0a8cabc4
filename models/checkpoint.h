#pragma once
// A whole training run in one safetensors file: it goes on to the last bit.

#include <string>

#include "models/grad_scaler.h"
#include "models/module.h"
#include "models/safetensors.h"
#include "models/schedule.h"

namespace brrr {

/// What a run consists of; parts that it does not have stay null.
struct TrainingState {
  models::Module* model = nullptr;
  optim::Optimizer* optimizer = nullptr;
  optim::Schedule* schedule = nullptr;
  Stateful* loader = nullptr;  ///< A data::Loader, a data::TokenDataset, or the program's own.
  int64_t step = 0;
  Metadata metadata =
      {};  ///< The program's own notes, e.g. the model's sizes; see save_checkpoint().
  optim::GradScaler* scaler = nullptr;
};

/// Writes all parts, and the random stream, as save() does; in a run of several processes all call
/// it, the first one writes, and all come back, or throw, when it has. In the file the model's
/// tensors are called "model.<name>", the others "optimizer.", "schedule.", "loader." and
/// "scaler."; in its metadata "brrr.step", "brrr.rng_seed" and "brrr.rng_draw" are not the
/// program's to give.
void save_checkpoint(const std::string& path, const TrainingState& state);
/// Restores all parts that are not null, `step`, `metadata` and the random stream. The file must
/// hold what they need, which is checked before anything changes; all processes call it, and their
/// files must be alike.
void load_checkpoint(const std::string& path, TrainingState& state);

}  // namespace brrr
