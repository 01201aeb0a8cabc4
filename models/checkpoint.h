#pragma once
// A whole training run in one safetensors file: a resumed run gives the same bits.

#include <string>

#include "models/grad_scaler.h"
#include "models/module.h"
#include "models/safetensors.h"
#include "models/schedule.h"

namespace brrr {

/// The parts of a run; those that it does not have stay null.
struct TrainingState {
  models::Module* model = nullptr;
  optim::Optimizer* optimizer = nullptr;
  optim::Schedule* schedule = nullptr;
  Stateful* loader = nullptr;  ///< A data::Loader, a data::TokenDataset, or the program's own.
  int64_t step = 0;
  Metadata metadata =
      {};  ///< The program's own entries, e.g. the model's sizes; see save_checkpoint().
  optim::GradScaler* scaler = nullptr;
};

/// Writes all parts and the state of the random stream, as save() does. A collective call: rank 0
/// writes, and all ranks return, or throw, once it has. In the file the model's tensors are named
/// "model.<name>", the others start with "optimizer.", "schedule.", "loader." and "scaler.". The
/// metadata keys "brrr.step", "brrr.rng_seed" and "brrr.rng_draw" are reserved; throws if
/// `metadata` has one of them.
void save_checkpoint(const std::string& path, const TrainingState& state);
/// Restores all parts that are not null, `step`, `metadata` and the random stream. Throws, before
/// anything changes, unless the file holds all that they need. A collective call; the ranks' files
/// must have the same content.
void load_checkpoint(const std::string& path, TrainingState& state);

}  // namespace brrr
