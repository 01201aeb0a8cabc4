#pragma once
// One model on several processes: each computes on its part of a batch, gradients are averaged.

#include <memory>
#include <string>
#include <vector>

#include "models/module.h"

namespace brrr::dist {

struct DataParallelOptions {
  /// Backward passes of this rank that make one step; gradients are exchanged in the last of them
  /// and are the mean over all passes of all ranks. An optimiser's step, clip_grad_norm_ and
  /// GradScaler::unscale_ are refused before that.
  int64_t accumulate = 1;
  /// Gradients travel in buckets of about so many bytes, while others are still being computed.
  /// 0: a quarter of the model, at least 1 MB and at most 25 MB: each costs a computation without a
  /// processor to spare some 100 us.
  int64_t bucket_bytes = 0;
  /// The passes of all ranks are summed in their order, so that any division of the same passes
  /// among processes gives the same bits. With `accumulate` above 1 that takes a set of gradients a
  /// pass, and their bytes on the way, on every rank but the first. If false, each rank sums its
  /// own passes, and then the ranks are summed.
  bool in_order = true;
  /// Each rank keeps the optimiser's state of a part of the parameters, about 1 / size() of their
  /// bytes, updates those and sends them to the others (ZeRO, stage 1). The bits are the same.
  /// Optimisers are made after the DataParallel; their state_dict(), and save_checkpoint(), are
  /// calls of all ranks, and rank 0 gets the whole. A step sends half as much again as without:
  /// every rank gets the gradients, 2 (N - 1) / N of their bytes, and then the new parameters.
  bool shard_optimizer = false;
  /// The same for gradients (stage 2), and so for the optimiser: after backward each rank keeps
  /// those of its part, which optimisers, clip_grad_norm_ and GradScaler find, and p.grad() is
  /// undefined. Clear them by zero_grad() of the optimiser or the module; p.set_grad({}) does not
  /// reach them. A step sends 2 (N - 1) / N of the gradients' bytes, with clipping some 1 / 4096
  /// more, on GPUs (N - 1) / N. A sum is awaited while the next one is on its way, so that no more
  /// than two buckets of all gradients are there at a time.
  bool shard_gradients = false;
};

/// Optimisers tell that they drop gradients of these.
void gradients_dropped(const std::vector<Tensor>& parameters);
/// `who` is about to use gradients of these, by an optimiser's step if it `updates` them: throws
/// between the passes of a step, and where shard_gradients has left one that no rank has exchanged.
void gradients_used(const char* who, const std::vector<Tensor>& parameters, bool updates = false);

/// The text of rank `root`, on every rank.
std::string broadcast_text(const std::string& text, int root);
/// Throws brrr::Error on every rank, "<what> differ: rank 0 has .., rank 1 has ..", unless all have
/// the same lines.
void check_alike(const std::string& what, const std::vector<std::string>& lines);

/// Keeps the copies of a model alike on all ranks:
///
///     brrr::dist::DataParallel ddp(model);
///     Tensor loss = brrr::cross_entropy(ddp(x), y);   // x, y: this rank's part
///     opt.zero_grad();
///     loss.backward();                                // gradients: the mean over the ranks
///     opt.step();
///
/// N ranks give the bits of one process that makes N passes over the same parts (`accumulate` = N,
/// the same DataParallel): sums are taken in rank order, and every pass draws its random numbers
/// from a stream of its own, so that dropout belongs to the part and not to the rank, whatever one
/// rank draws between steps. Eager or in a recorded step. Alone it only averages over `accumulate`.
/// Neither copied nor moved; it outlives the steps that were recorded with it.
///
/// All ranks use the same parameters in a step, or all get an Error that names them (steps recorded
/// for linked GPUs compare only with BRRR_DIST_CHECK=1, when they are recorded). A rank whose loss
/// reaches none of them waits for nobody: all learn of it in the next exchange, as the number of
/// steps of optimisers since the last one has to be the same. Several forward passes before one
/// backward pass are one pass; so is one whose result is not used: evaluate under NoGradGuard, or
/// in eval() mode, where nothing is drawn. Backward passes into the parameters without ddp(x) are
/// refused in the thread that made the DataParallel; go backward in that thread. Where one of a
/// step's `accumulate` passes throws, zero_grad() of all parameters that require a gradient begins
/// the step anew, in one call or in several; a recorded step does that by itself. Its limits:
/// without zero_grad() before a step the old gradient is averaged with the passes, and that is not
/// what accumulation makes of it (with shard_gradients it is added as it is). Buffers are rank 0's
/// in the beginning only; what a forward pass writes into them is the rank's own, and rank 0's are
/// saved. Inside another DataParallel's forward pass it is refused: one backward pass has one that
/// exchanges.
class DataParallel : NotCopied {
 public:
  /// Every rank makes the same call at the same point: parameters and buffers become rank 0's.
  /// Throws brrr::Error, naming what differs, if the ranks' models, dtypes or seeds do. Move or
  /// convert the model before.
  explicit DataParallel(models::Module& module, DataParallelOptions options = {});
  ~DataParallel();

  /// The module's forward; what backward then gives is exchanged.
  Tensor operator()(const Tensor& x);
  /// The same for a model that computes its loss otherwise: before its forward pass.
  void begin_pass();
  models::Module& module() const;
  /// What it makes of a batch of all ranks and passes, dim 0 of which they divide: this rank's
  /// part.
  Tensor part(const Tensor& batch) const;

  struct State;

 private:
  std::unique_ptr<State> state_;
};

}  // namespace brrr::dist
