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
  Strict,  ///< Graph equals eager to the last bit, as same_bits() compares: where one has a NaN,
           ///< so has the other, but its sign and payload may differ.
  Fast,    ///< Fused bfloat16 and float16 chains are rounded where a value is stored, not after
           ///< each op (casts included). A result differs from Strict's by the roundings, each 2^-8
           ///< (2^-11) of what is rounded, that one has and the other has not, as what follows
           ///< passes them on: at most two an op, of the largest value before, where nothing
           ///< enlarges a difference. Sums and products add up those of their terms, exp and
           ///< division may enlarge them, comparisons fall either way for values so near. A value
           ///< on its way that float16 does not hold is no infinity. What float32 and float64 ops
           ///< alone compute has the bits of Strict.
};
/// What to do with a call that matches no recording, after the first.
enum class Policy : uint8_t {
  Recompile,  ///< Record it as a new entry.
  Error,      ///< Throw, saying what differs from the closest recording.
  Eager,      ///< Run it once through the reference walker and forget it.
};

struct StepOptions {
  Mode mode = Mode::Graph;
  Numerics numerics = Numerics::Strict;
  /// Every n-th replay also runs eagerly on cloned state, and both are compared as same_bits()
  /// does; 0: never. A difference, or memory that the function wrote behind brrr's back while it
  /// ran (see Step), throws, and the step has not happened. On several ranks, of a step that has
  /// collectives: the same on all of them; a call for which it is due on one of them is compared on
  /// all, if it is a replay on all.
  int verify_every = 0;
  bool require_graph = false;  ///< Throw instead of falling back to the reference walker.
  Policy on_new_entry = Policy::Recompile;
  int max_entries = 8;               ///< Least recently used recordings beyond it are dropped.
  bool build_at_first_call = false;  ///< Build kernels at an entry's first call, not its second.
  /// Debug, in every mode: op by op, throw at the first NaN or infinity that an op makes, naming
  /// it, its module (for backward's ops the one whose values they use) and its operands. A mask's
  /// infinity passes: one that a number of the step puts there (`where(keep, scores, -inf)`), or
  /// -inf in an operand from outside. In graph mode a step that throws has changed nothing; in
  /// eager mode it has done what came before.
  bool check_numerics = false;
  bool fuse = true;  ///< False: replay without fusion, to measure what fusion brings.
  /// False: a value that is used again is kept, even where a fused kernel could make it anew with
  /// fewer bytes moved, or where a large one costs less than a hundredth of the step's time; nor is
  /// a derivative computed with its function, to be kept instead of the function's operand.
  bool rematerialise = true;
  /// What the temporaries of a replay should fit into: below 1 a part of what they would need, from
  /// 1 on bytes; 0: they take what is quickest. Values are made anew instead of kept, those first
  /// that cost least, until they fit or no value is left whose loss helps: to the same bits, in
  /// more time. What kernels take while they run (packed operands of products, attention) comes
  /// beside. explain() says what was done.
  double memory_budget = 0;
  /// On a CPU, kernels that move more run in equal parts of about so many bytes a thread, together
  /// with their neighbours and one part after the other: what one leaves is in a cache when the
  /// next needs it, and what nobody else needs is never there as a whole. To the same bits. 0: as
  /// much as suits the caches; below 0: never. explain() says which kernels those are.
  int64_t part_bytes = 0;
};

/// What a step has done so far. Seconds are wall time.
struct StepStats {
  uint64_t calls = 0, recordings = 0, replays = 0, fallbacks = 0, evictions = 0;
  uint64_t entries = 0;
  uint64_t verified = 0;             ///< Replays that were checked against eager.
  uint64_t ops_per_replay = 0;       ///< Instructions of the last entry used.
  uint64_t kernels_per_replay = 0;   ///< What they became.
  uint64_t fused_kernels = 0;        ///< Of those, generated ones.
  uint64_t launches_per_replay = 0;  ///< Graph launches: 1 on a GPU, 0 on the CPU.
  uint64_t in_place = 0, in_place_candidates = 0;
  uint64_t made_anew = 0;        ///< Instructions of a replay that make values anew.
  size_t arena_bytes = 0;        ///< Temporaries of a replay that fit into no result's memory.
  size_t lower_bound_bytes = 0;  ///< The largest sum of those that are live at a time.
  double record_seconds = 0, fuse_seconds = 0, plan_seconds = 0, build_seconds = 0,
         capture_seconds = 0;
  bool build_cached = false;    ///< The last build came from the disk cache.
  std::string last_fallback;    ///< Why the walker served a call instead of a replay.
  std::string last_difference;  ///< Why a new entry was recorded.
};

namespace graph {

/// The results of one call, as pointers into the user's value.
using ResultList = std::vector<const Tensor*>;

/// What a Step does that does not depend on its function's type.
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

/// A training step made by brrr::step. Where the function only reads what threads share, several
/// may call it at the same time; where it changes that (parameters, gradients), as in eager mode,
/// one after the other. It can be moved; everything throws that is then asked of the one that it
/// was moved from.
///
/// In graph mode the operations run once the function has returned. What it writes to memory behind
/// brrr's back, through a pointer taken before the step (data_ptr(), data<T>()), into a buffer
/// that a from_blob without a copy shows or by operations of another thread, is therefore read
/// once, after the function: an operation called before such a write sees it too, other than in
/// eager mode. Write such memory between calls, or use operations (copy_()).
/// StepOptions::verify_every reports it on the CPU.
///
/// What a recording says of modules (explain(), check_numerics, a Profile) are the names of the
/// call that it was made in: of modules of one shape that take turns in the function, one recording
/// serves all, and names the first.
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

  /// Calls the function (exactly once, or not at all once frozen) and returns what it returned.
  /// If it throws, nothing of the step has happened: every tensor is what it was. (A handle from
  /// outside that the function has given another tensor keeps that one, which was never computed.)
  /// A step called in the function of another one in graph mode is a part of that one: its function
  /// is run, frozen or not, and if it throws, nothing is undone unless the outer one throws as
  /// well.
  template <class... T> auto operator()(const T&... args) { return run_by(base(), args...); }

  /// From the next call on `fn` is not run any more: the recorded step is replayed with its
  /// recorded effects (grad fields, in-place updates, draws, learning rates). Throws, saying why,
  /// if that could not be right: before the first call, with verify_every, when the step makes
  /// tensors from host memory or moves some to a GPU, draws from a stream that it begins itself
  /// (RngScope) or has had other numbers (`x * k`) in an earlier call, or when it leaves tensors
  /// with holders other than its results and grad fields, or modules in another mode. Those come
  /// without the histories that backward() has used up: they are leaves that require no grad. In
  /// eager mode nothing changes.
  void freeze() { base().freeze(); }
  StepStats stats() const { return base().stats(); }
  /// Entries, replays, fallbacks and why, kernels, bytes and times, for people.
  std::string explain() const { return base().explain(); }
  /// The last entry as a graph in DOT.
  std::string dot() const { return base().dot(); }
  /// The kernels that were generated for the last entry, as their compiler was given them (C++ for
  /// the host's, CUDA C++ for NVRTC), behind the definitions that they share; a comment before each
  /// names its ops. What they call is ops/vocabulary. Throws in eager mode, and before there are
  /// any: they are built in an entry's second call, unless StepOptions say otherwise.
  std::string source() const { return base().source(); }
  Mode mode() const { return base().options().mode; }
  /// A tensor for argument `index` to write the next batch into: the same one on every call, so
  /// that nothing has to be copied or bound anew. On a GPU write it with copy_(), which takes a
  /// tensor of the CPU too. Throws for an argument that the calls so far did not have, for negative
  /// sizes, inside a step, and where there is no such device.
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
// A template, so that {} are options: as a mode it would be the first one, Eager.
template <class F, std::same_as<Mode> M> Step<F> step(F fn, M mode) {
  return Step<F>(std::move(fn), StepOptions{.mode = mode});
}

}  // namespace brrr
