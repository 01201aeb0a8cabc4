#pragma once
// brrr::step: the same training step, run eagerly or recorded, fused and replayed.

#include <concepts>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/device.h"
#include "core/moved.h"
#include "core/tensor.h"

namespace brrr {

enum class Mode : uint8_t {
  Eager,  ///< Every op runs when it is called.
  Graph,  ///< The step is recorded, fused and replayed.
  Auto,   ///< Graph, but kept eager where replay turns out slower.
};
enum class Numerics : uint8_t {
  Strict,  ///< Graph mode equals eager mode bit for bit, as same_bits() compares: NaNs are in the
           ///< same places, but their signs and payloads may differ.
  Fast,    ///< Fused bfloat16 and float16 chains round where a value is stored, not after each op
           ///< (casts included). A result differs from Strict's by the roundings that only one of
           ///< the two makes, each 2^-8 (float16: 2^-11) of the rounded value, as later ops
           ///< propagate them: at most two per op, relative to the largest value before, where no
           ///< op amplifies a difference. Sums and products add up their terms' errors, exp and
           ///< division may amplify them, comparisons of values that close may go either way. An
           ///< intermediate value beyond float16's range does not become infinite. Chains of only
           ///< float32 and float64 ops have the bits of Strict.
};
/// What to do with a call that matches no recording, after the first.
enum class Policy : uint8_t {
  Recompile,  ///< Record it as a new entry: a recording and what is compiled from it.
  Error,      ///< Throw, saying what differs from the closest recording.
  Eager,      ///< Run it once, op by op, and forget it.
};

struct StepOptions {
  Mode mode = Mode::Graph;
  Numerics numerics = Numerics::Strict;
  /// Every n-th replay also runs eagerly on cloned state, and the two are compared as same_bits()
  /// does; 0: never. A difference, or memory that the function wrote other than by ops while it
  /// ran (see Step), throws, and the step has no effect. A step with collectives needs the same
  /// value on all ranks; a call that is due for verification on one rank is verified on all, if it
  /// is a replay on all.
  int verify_every = 0;
  bool require_graph = false;  ///< Throw instead of falling back to running op by op.
  Policy on_new_entry = Policy::Recompile;
  int max_entries = 8;               ///< Beyond it the least recently used entry is dropped.
  bool build_at_first_call = false;  ///< Build kernels at an entry's first call, not its second.
  /// For debugging, in every mode: run op by op and throw at the first NaN or infinity that an op
  /// produces, naming the op, its module (for backward ops the module whose values they use) and
  /// its operands. Infinities of masks are allowed: those that a scalar of the step introduces
  /// (`where(keep, scores, -inf)`), and -inf in an operand from outside. In graph mode a step that
  /// throws has changed nothing; in eager mode the ops before the failing one have run.
  bool check_numerics = false;
  bool fuse = true;  ///< False: replay without fusion, to measure what fusion brings.
  /// False: a value that is used again is kept, even where a fused kernel could recompute it with
  /// less memory traffic, or where recomputing a large one costs under a hundredth of the step's
  /// time; nor is a derivative computed in forward with its function and kept instead of the
  /// function's operand.
  bool rematerialise = true;
  /// Memory that the temporaries of a replay should fit into: below 1 a fraction of what they would
  /// need, from 1 on bytes; 0: whatever is fastest. Values are recomputed instead of kept, cheapest
  /// first, until the temporaries fit or dropping no other value helps: same bits, more time.
  /// Kernels' scratch memory (packed operands of products, attention) is not included. explain()
  /// reports what was done.
  double memory_budget = 0;
  /// On a CPU, kernels that move more bytes per thread run in equal parts of about this size,
  /// together with their neighbours and one part after the other: a kernel's results are still in
  /// cache when the next reads them, and values that only these kernels use never exist as a whole.
  /// Same bits. 0: a size that suits the caches; below 0: never. explain() names the kernels.
  int64_t part_bytes = 0;
};

/// What a step has done so far. Seconds are wall time.
struct StepStats {
  uint64_t calls = 0, recordings = 0, replays = 0, fallbacks = 0, evictions = 0;
  uint64_t entries = 0;
  uint64_t verified = 0;             ///< Replays that were checked against eager.
  uint64_t ops_per_replay = 0;       ///< Instructions of the last entry used.
  uint64_t kernels_per_replay = 0;   ///< Kernels that run them.
  uint64_t fused_kernels = 0;        ///< Of those, generated ones.
  uint64_t launches_per_replay = 0;  ///< Graph launches: 1 on a GPU, 0 on the CPU.
  uint64_t in_place = 0, in_place_candidates = 0;
  uint64_t rematerialised = 0;   ///< Instructions of a replay that recompute values.
  size_t arena_bytes = 0;        ///< Memory of temporaries that are not placed in results' memory.
  size_t lower_bound_bytes = 0;  ///< The largest sum of those temporaries that are live at once.
  double record_seconds = 0, fuse_seconds = 0, plan_seconds = 0, build_seconds = 0,
         capture_seconds = 0;
  bool build_cached = false;    ///< The last build came from the disk cache.
  std::string last_fallback;    ///< Why a call ran op by op instead of as a replay.
  std::string last_difference;  ///< Why a new entry was recorded.
};

namespace graph {

/// The results of one call, as pointers into the user's value.
using ResultList = std::vector<const Tensor*>;

/// The part of a Step that does not depend on its function's type.
class StepBase {
 public:
  virtual ~StepBase() = default;
  /// Runs `body(ctx, results)` in the step's mode and returns null; or, when a frozen replay served
  /// the call instead, its results, to be moved from before the thread's next call.
  virtual std::vector<Tensor>* run(const Tensor* const* args, size_t n,
                                   void (*body)(void*, ResultList&), void* ctx) = 0;
  virtual void freeze() = 0;
  virtual bool is_frozen() const = 0;
  virtual StepStats stats() = 0;
  virtual std::string explain() = 0;
  virtual std::string dot() = 0;
  virtual std::string source() = 0;
  virtual Tensor input(int index, const IntList& sizes, DType dtype, Device device) = 0;
  virtual const StepOptions& options() const = 0;
};
std::unique_ptr<StepBase> make_step(StepOptions options);

template <class R> void list_results(const R& r, ResultList& out) {
  if constexpr (std::is_same_v<R, Tensor>) {
    out.push_back(&r);
  } else if constexpr (std::is_same_v<R, std::vector<Tensor>>) {
    for (const Tensor& t : r) out.push_back(&t);
  } else {
    std::apply([&](const auto&... t) { (out.push_back(&t), ...); }, r);
  }
}

template <class R> R pack_results(std::vector<Tensor>& v) {
  if constexpr (std::is_same_v<R, Tensor>) {
    return std::move(v[0]);
  } else if constexpr (std::is_same_v<R, std::vector<Tensor>>) {
    return std::vector<Tensor>(std::make_move_iterator(v.begin()),
                               std::make_move_iterator(v.end()));
  } else {
    return [&]<size_t... I>(std::index_sequence<I...>) { return R{std::move(v[I])...}; }
    (std::make_index_sequence<std::tuple_size_v<R>>{});
  }
}

}  // namespace graph

struct Diagnosis;

/// A training step made by brrr::step. Several threads may call it at the same time if the function
/// only reads what they share; if it writes that (parameters, gradients), calls must not overlap,
/// as in eager mode. Movable; every member of a moved-from step throws.
///
/// In graph mode the ops run after the function has returned. Memory that the function writes other
/// than by ops is therefore read once, after the function: an op called before such a write sees
/// it, too, unlike in eager mode. Such writes go through a pointer taken before the step
/// (data_ptr(), data<T>()), into a buffer that a from_blob without a copy shows, or come from ops
/// of another thread. Write such memory between calls, or with ops (copy_()).
/// StepOptions::verify_every reports such writes on the CPU.
///
/// Module names (explain(), check_numerics, a Profile) are those of the call that was recorded: if
/// modules of one shape take turns in the function, one recording serves all and names the first.
template <class F> class Step {
 public:
  Step(F fn, StepOptions options) : fn_(std::move(fn)), base_(graph::make_step(options)) {}
  Step(Step&&) = default;
  // A lambda that captures can be constructed, but not assigned.
  Step& operator=(Step&& other) {
    if (this == &other) return *this;
    fn_.emplace(std::move(*other.fn_));
    base_ = std::move(other.base_);
    return *this;
  }

  /// Calls the function (exactly once, or not at all once frozen) and returns its result. If it
  /// throws, the step has no effect: every tensor is unchanged. (A handle from outside that the
  /// function has assigned keeps the new tensor, which was never computed.) A step called inside
  /// another one in graph mode is inlined into it: its function runs, frozen or not, and if it
  /// throws, nothing is undone unless the outer step throws as well.
  template <class... T> auto operator()(const T&... args) { return run_by(base(), args...); }

  /// From the next call on `fn` no longer runs: the recorded step is replayed with its recorded
  /// effects (grad fields, in-place updates, random draws, learning rates). Throws, with the
  /// reason, if that could be wrong: before the first call, with verify_every, when the step makes
  /// tensors from host memory or moves some to a GPU, draws from a random stream that it starts
  /// itself (RngScope), used other scalars (`x * k`) in an earlier call, or leaves tensors held by
  /// anything but its results and grad fields, or modules in another mode. Results and gradients
  /// come without the history that backward() has consumed, as leaves that require no grad. No
  /// effect in eager mode.
  void freeze() { base().freeze(); }
  StepStats stats() const { return base().stats(); }
  /// Entries, replays, fallbacks and their reasons, kernels, bytes and times, as readable text.
  std::string explain() const { return base().explain(); }
  /// The last entry as a graph in DOT.
  std::string dot() const { return base().dot(); }
  /// The source of the last entry's generated kernels, as their compiler gets it (C++ for the
  /// host's, CUDA C++ for NVRTC), after the definitions that they share; a comment before each
  /// names its ops. The functions they call are in ops/vocabulary. Throws in eager mode, and before
  /// there are any: an entry's second call builds them, or its first (build_at_first_call).
  std::string source() const { return base().source(); }
  Mode mode() const { return base().options().mode; }
  /// A tensor for argument `index` to write the next batch into: the same one on every call, so
  /// that no replay has to copy or rebind it. On a GPU write it with copy_(), which takes a CPU
  /// tensor, too. Throws for an argument that no call so far had, for negative sizes, inside a
  /// step, and for a device that does not exist.
  Tensor input(int index, const IntList& sizes, DType dtype = kFloat32,
               Device device = default_device()) {
    return base().input(index, sizes, dtype, device);
  }

 private:
  template <class G, class... T> friend Diagnosis diagnose(Step<G>& step, const T&... args);

  template <class... T> auto run_by(graph::StepBase& base, const T&... args) {
    static_assert((std::is_same_v<T, Tensor> && ...), "a step takes Tensors");
    using R = std::decay_t<std::invoke_result_t<F&, const T&...>>;
    const Tensor* list[] = {&args..., nullptr};
    if constexpr (std::is_void_v<R>) {
      auto body = [&](graph::ResultList&) { (*fn_)(args...); };
      base.run(list, sizeof...(T), invoke<decltype(body)>, &body);
    } else {
      std::optional<R> result;
      auto body = [&](graph::ResultList& out) {
        result.emplace((*fn_)(args...));
        graph::list_results(*result, out);
      };
      if (auto* frozen = base.run(list, sizeof...(T), invoke<decltype(body)>, &body)) {
        return graph::pack_results<R>(*frozen);
      }
      return std::move(*result);
    }
  }
  template <class Body> static void invoke(void* ctx, graph::ResultList& out) {
    (*static_cast<Body*>(ctx))(out);
  }
  graph::StepBase& base() const {
    if (!base_) [[unlikely]]
      moved_from("step");
    return *base_;
  }
  std::optional<F> fn_;  // Never empty.
  std::unique_ptr<graph::StepBase> base_;
};

/// Wraps `fn`, which takes Tensors and returns void, a Tensor, or a tuple or vector of Tensors.
template <class F> Step<F> step(F fn, StepOptions options = {}) {
  return Step<F>(std::move(fn), options);
}
// A template, so that step(fn, {}) means default options: as a Mode, {} would be Eager.
template <class F, std::same_as<Mode> M> Step<F> step(F fn, M mode) {
  return Step<F>(std::move(fn), StepOptions{.mode = mode});
}

}  // namespace brrr
