#pragma once
// Data parallelism: each rank computes on its part of a batch, and the gradients are averaged.

#include <memory>
#include <string>
#include <vector>

#include "models/module.h"

namespace brrr::dist {

struct DataParallelOptions {
  /// Backward passes of this rank per step. The last one exchanges the gradients, which are then
  /// the mean over all passes of all ranks. An optimiser's step, clip_grad_norm_ and
  /// GradScaler::unscale_ throw before that.
  int64_t accumulate = 1;
  /// Gradients are exchanged in buckets of about this many bytes while others are still being
  /// computed. 0: a quarter of the model, at least 1 MB and at most 25 MB. Each bucket costs about
  /// 100 us of computation if no processor is idle.
  int64_t bucket_bytes = 0;
  /// Gradients are summed pass by pass, over all ranks in order, so that any division of the same
  /// passes among processes gives the same bits. With `accumulate` above 1 every rank but the first
  /// keeps and sends one set of gradients per pass. If false, each rank first sums its own passes,
  /// and these sums are then added over the ranks.
  bool in_order = true;
  /// Each rank keeps the optimiser's state for a part of the parameters, about 1 / size() of their
  /// bytes, updates that part and sends it to the others (ZeRO, stage 1). The bits are the same.
  /// Construct optimisers after the DataParallel. Their state_dict() and save_checkpoint() become
  /// collective calls, and rank 0 gets the complete state. A step sends half as much again: every
  /// rank gets all gradients, 2 (N - 1) / N of their bytes, and then the new parameters.
  bool shard_optimizer = false;
  /// Also shards the gradients (ZeRO, stage 2); implies shard_optimizer. After backward each rank
  /// keeps only the gradients of its part, which optimisers, clip_grad_norm_ and GradScaler use;
  /// p.grad() is undefined. Clear them by zero_grad() of the optimiser or module; p.set_grad({})
  /// does not reach them. A step sends 2 (N - 1) / N of the gradients' bytes, with clipping about
  /// 1 / 4096 more, on GPUs (N - 1) / N more. The sum of one bucket is awaited while the next is in
  /// flight, so that at most two buckets of unsharded gradients exist at a time.
  bool shard_gradients = false;
};

/// Called by optimisers and modules that drop the gradients of these parameters.
void gradients_dropped(const std::vector<Tensor>& parameters);
/// Called by `who` before it reads the gradients of these parameters, with `updates` by an
/// optimiser's step. Throws between the passes of a step, and where shard_gradients finds a
/// gradient that has not been exchanged.
void gradients_used(const char* who, const std::vector<Tensor>& parameters, bool updates = false);

/// The text of rank `root`, on every rank.
std::string broadcast_text(const std::string& text, int root);
/// Throws brrr::Error on every rank, "<what> differ: rank 0 has .., rank 1 has ..", unless all
/// ranks pass the same lines.
void check_alike(const std::string& what, const std::vector<std::string>& lines);

/// Keeps the ranks' copies of a model equal:
///
///     brrr::dist::DataParallel ddp(model);
///     Tensor loss = brrr::cross_entropy(ddp(x), y);   // x, y: this rank's part
///     opt.zero_grad();
///     loss.backward();                                // gradients: the mean over the ranks
///     opt.step();
///
/// N ranks give the bits of one process that makes N passes over the same parts (`accumulate` = N,
/// the same DataParallel): sums are taken in rank order, and every pass draws its random numbers
/// from its own stream, so that dropout depends on the part and not on the rank, whatever a rank
/// draws between steps. Works eagerly and in a recorded step. With one process it only averages
/// over `accumulate`. Neither copied nor moved; must outlive the steps that were recorded with it.
///
/// All ranks must use the same parameters in a step; otherwise all get an Error that names them
/// (steps recorded for GPUs linked by NCCL compare only with BRRR_DIST_CHECK=1, when recorded). A
/// rank whose loss reaches no parameter takes part in no exchange: the next exchange reports this,
/// because it compares the number of optimiser steps since the last one. Several forward passes
/// before one backward pass count as one pass, and so does a forward pass whose result is not used:
/// evaluate under NoGradGuard, or in eval() mode, where nothing is drawn. A backward pass into the
/// parameters without ddp(x) throws, but only in the thread that made the DataParallel: run
/// backward there. If one of a step's `accumulate` passes throws, zero_grad() of all parameters
/// that require a gradient, in one call or several, restarts the step; a recorded step does so
/// itself. Limits: without zero_grad() before a step the old gradient is averaged with the passes,
/// which differs from plain accumulation (with shard_gradients it is added unscaled). Buffers are
/// copied from rank 0 at construction only; what a forward pass writes into them stays local, and
/// rank 0's are saved. A forward pass inside another DataParallel's throws: only one of them can
/// exchange the gradients of a backward pass.
class DataParallel : NotCopied {
 public:
  /// A collective call: parameters and buffers become rank 0's. Throws brrr::Error, naming the
  /// difference, if the ranks' models, dtypes or seeds differ. Move or convert the model before.
  explicit DataParallel(models::Module& module, DataParallelOptions options = {});
  ~DataParallel();

  /// The module's forward; the gradients of the backward pass that follows are exchanged.
  Tensor operator()(const Tensor& x);
  /// The same for a model with another forward function: call this before it.
  void begin_pass();
  models::Module& module() const;
  /// This rank's part of a batch of all ranks and passes, whose dim 0 they divide.
  Tensor part(const Tensor& batch) const;

  struct State;

 private:
  std::unique_ptr<State> state_;
};

}  // namespace brrr::dist
