#include "models/data_parallel.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <list>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>
#include <utility>

#include "core/call.h"
#include "core/check.h"
#include "core/context.h"
#include "core/rng.h"
#include "core/tensor_impl.h"
#include "models/sharding.h"
#include "ops/dist.h"
#include "ops/dist_ops.h"
#include "ops/factory_ops.h"
#include "ops/kinds/exchange_buckets.h"

namespace brrr::dist {

namespace {

// Draws of a pass: what it numbers below is its own.
constexpr int kPassBits = 32;

int64_t bucket_bytes(const std::vector<Tensor>& parameters, const DataParallelOptions& o) {
  if (o.bucket_bytes > 0) return o.bucket_bytes;
  int64_t all = 0;
  for (const Tensor& p : parameters) all += p.numel() * static_cast<int64_t>(itemsize(p.dtype()));
  return std::clamp<int64_t>(all / 4, int64_t{1} << 20, int64_t{25} << 20);
}

template <class T> std::vector<T> reversed(std::vector<T> all) {
  std::reverse(all.begin(), all.end());
  return all;
}

// What must be equal on all ranks, line by line.
std::vector<std::string> features(const models::Module& m, const DataParallelOptions& o) {
  std::vector<std::string> lines;
  for (const auto* list : {"parameter", "buffer"}) {
    for (const auto& [name, t] : *list == 'p' ? m.named_parameters() : m.named_buffers()) {
      lines.push_back(fmt::format("{} {}, {}{}", list, name, describe(t),
                                  *list == 'p' && !t.requires_grad() ? " without gradient" : ""));
    }
  }
  lines.push_back(fmt::format("seed {}, draw {}", rng_state().seed, rng_state().draw));
  lines.push_back(fmt::format(
      "accumulate {}, bucket_bytes {}, in_order {}, shard_optimizer {}, shard_gradients {}",
      o.accumulate, o.bucket_bytes, o.in_order, o.shard_optimizer, o.shard_gradients));
  return lines;
}

}  // namespace

struct DataParallel::State final : NotCopied {
  // What a thread's context points to. It stays: any thread may destroy the DataParallel.
  struct Hook final : GradientHook {
    explicit Hook(State* of) : state(of) {}
    void ready(TensorImpl& leaf) override {
      if (State* const s = state) s->ready(leaf);
    }
    void finished() override {
      if (State* const s = state) s->finished();
    }
    void abandoned() noexcept override {
      if (State* const s = state) s->buckets.clear();
    }
    bool awaited() const override {
      const State* const s = state;
      return s && s->expected;
    }
    std::atomic<State*> state;
  };

  State(models::Module& m, const DataParallelOptions& o)
      : module(m),
        options(o),
        named(reversed(m.named_parameters())),
        parameters(reversed(m.parameters())),
        sharding(o.shard_optimizer || o.shard_gradients ? Sharding::make(named, o.shard_gradients)
                                                        : nullptr),
        buckets(parameters, bucket_bytes(parameters, o),
                o.in_order ? static_cast<int>(o.accumulate) : 1, division()),
        there(buckets.size()),
        came(parameters.size()),
        cleared(parameters.size()) {
    for (size_t k = 0; k < parameters.size(); ++k) {
      index.emplace(parameters[k].impl(), k);
      dtypes.push_back(parameters[k].dtype());
    }
    for (int64_t pass = 1; o.in_order && rank() > 0 && pass < o.accumulate; ++pass) {
      auto& leaves = earlier.emplace_back();
      for (const Tensor& p : parameters) leaves.push_back(p.detach());
    }
    const std::lock_guard lock(mutex);
    all.push_back(this);
    static auto& hooks = *new std::list<Hook>;
    hook = &hooks.emplace_back(this);
  }
  ~State() {
    if (context.gradients == hook) {
      context.gradients = nullptr;
      leave_stream();
    }
    hook->state = nullptr;
    const std::lock_guard lock(mutex);
    std::erase(all, this);
  }

  // Who has to know what optimisers do to gradients: all, whichever had the last pass.
  static inline std::mutex mutex;
  static inline auto& all = *new std::vector<State*>;

  Hook* hook;
  models::Module& module;
  DataParallelOptions options;
  std::vector<NamedTensor> named;  // In the order in which backward comes to them, about.
  std::vector<Tensor> parameters;
  std::vector<DType> dtypes;
  std::shared_ptr<Sharding> sharding;
  Buckets buckets;
  std::vector<size_t> there;            // Of each bucket, so many gradients in this pass.
  std::optional<size_t> complete;       // A bucket whose sum is on its way.
  std::vector<bool> came;               // In this backward pass.
  std::vector<bool> cleared;            // Since this pass began.
  bool anew = false;                    // All were between passes: the next one begins a step.
  std::atomic<bool> expected{false};    // A backward pass of a forward pass that has begun,
  std::atomic<std::thread::id> thread;  // which was there.
  std::unordered_map<const TensorImpl*, size_t> index;
  // Optimisers' steps since the last exchange. One before the first, as there is before every
  // other: the recording of the first call serves the next ones.
  const Ref<ControlCell> steps = control_cell(1, ControlCell::Mark);
  // The pass of a step, in a cell that a recorded step which throws puts back,
  const Ref<ControlCell> cell = control_cell(0);
  uint64_t group = 0;         // whose passes have streams group * streams() and following.
  std::vector<size_t> begun;  // In this backward pass, and not awaited yet,
  bool reached = false;       // which has come to one of the parameters, and has not ended.
  // Beside each parameter a leaf for each pass but the last, whose gradient is that pass's: a step
  // that throws gives it back like any other.
  std::vector<std::vector<Tensor>> earlier;

  int64_t pass() const { return static_cast<int64_t>(cell->value); }
  bool last_pass() const { return pass() + 1 == options.accumulate; }
  uint64_t passes() const { return static_cast<uint64_t>(size() * options.accumulate); }

  static uint64_t stream() { return rng_state().draw >> kPassBits; }
  uint64_t own_stream() const {
    return group * streams() + static_cast<uint64_t>(rank() * options.accumulate + pass());
  }
  // The last of a group is for what a rank draws between steps, be it little or much, alone or not.
  uint64_t streams() const { return passes() + 1; }
  uint64_t after_group(uint64_t g) const { return g * streams() + passes(); }
  // Also after a forward pass that no backward pass has followed, when each rank is in a stream of
  // its own, and after steps of other sizes, which had other groups.
  uint64_t next_group() const { return stream() / streams() + 1; }
  static void to_stream(uint64_t number) { set_rng_state({rng_state().seed, number << kPassBits}); }

  // Of a pass that was given up each rank has a stream of its own.
  void leave_stream() const {
    if (expected && stream() == own_stream()) to_stream(after_group(group));
  }

  // Another model's backward pass, after an evaluation or a pass that was given up, never comes.
  void leave_other() const {
    const bool awaits = context.gradients && context.gradients != hook;
    const State* const other =
        awaits ? static_cast<Hook*>(context.gradients)->state.load() : nullptr;
    if (other && other->thread.load() == std::this_thread::get_id()) other->leave_stream();
  }

  void begin_pass() {
    if (passes() == 1) return;
    check_parameters();
    // Another forward pass for the same backward pass.
    if (expected && !reached && !anew && context.gradients == hook && stream() == own_stream())
      return;
    anew = false;
    cleared.assign(cleared.size(), false);
    begun.clear();  // Of a pass that has thrown.
    there.assign(there.size(), 0);
    complete.reset();
    came.assign(came.size(), false);
    reached = false;
    leave_other();
    if (pass() == 0) {
      group = next_group();
      drop_earlier();
      for (auto& leaves : earlier) {  // The model may have been moved.
        for (size_t k = 0; k < leaves.size(); ++k) {
          const bool there = leaves[k].impl()->storage == parameters[k].impl()->storage;
          if (!there) leaves[k] = parameters[k].detach();
        }
      }
    }
    to_stream(own_stream());
    context.gradients = hook;
    thread = std::this_thread::get_id();
    expected = true;
  }

  // Once those of all parameters that have one are dropped, by one call or several, what follows is
  // a step anew, also after a pass that has thrown. Of a forward pass before that, whose backward
  // pass is still to come, it is the first one.
  void dropped(const std::vector<Tensor>& gradients_of) {
    bool own = false;
    for (const Tensor& t : gradients_of) {
      if (const auto at = index.find(t.impl()); at != index.end()) cleared[at->second] = own = true;
    }
    if (!own) return;
    for (size_t k = 0; k < parameters.size(); ++k) {
      if (!cleared[k] && parameters[k].requires_grad()) return;
    }
    cleared.assign(cleared.size(), false);
    if (pass() == 0) return;
    anew = true;
    set_control(*cell, 0);
    drop_earlier();
  }
  void drop_earlier() const {
    for (const auto& leaves : earlier) {
      for (const Tensor& t : leaves) {
        if (t.grad().defined()) t.set_grad({});
      }
    }
  }

  void used(const char* who, const std::vector<Tensor>& gradients_of, bool updates) {
    // Another model's passes may be under way on another thread: they are not looked at.
    const auto is_own = [&](const Tensor& t) { return index.count(t.impl()) != 0; };
    if (std::ranges::none_of(gradients_of, is_own)) return;
    BRRR_CHECK(
        pass() == 0,
        "{}: of a DataParallel's parameters after {} of {} backward passes (accumulate), whose "
        "gradients have not been exchanged yet; call it after the last one, or drop what a "
        "short last group has left by zero_grad() of the module",
        who, pass(), options.accumulate);
    if (updates && size() > 1) set_control(*steps, std::min(steps->value + 1, 255.0));
  }

  // Buckets have the parameters' dtypes, and a sharding has views of them.
  void check_parameters() const {
    for (size_t k = 0; k < named.size(); ++k) {
      const auto& [name, p] = named[k];
      BRRR_CHECK(p.dtype() == dtypes[k], "DataParallel: parameter {} was {} and is {} now; {}",
                 name, brrr::name(dtypes[k]), describe(p), Sharding::kMend);
      if (sharding) sharding->check_in_place("DataParallel", p);
    }
  }

  void ready(TensorImpl& leaf) {
    const auto at = index.find(&leaf);
    if (at == index.end()) return check_others(leaf);
    BRRR_CHECK(expected,
               "DataParallel: a backward pass into parameter {}, {}, without a forward pass "
               "through ddp(x): it would not be exchanged. Call ddp(x) instead of model(x), add "
               "losses and go backward once, or call begin_pass() before each pass",
               named[at->second].first, describe(&leaf));
    reached = true;
    if (!last_pass() || size() == 1) return;
    begin(at->second);
  }

  void check_others(TensorImpl& leaf) const {
    const std::lock_guard lock(mutex);
    for (const State* s : all) {
      if (!s->expected || s->thread.load() != std::this_thread::get_id()) continue;
      BRRR_CHECK(!s->index.count(&leaf),
                 "DataParallel: a backward pass into {}, of another DataParallel, after this one's "
                 "forward pass: a thread trains one at a time; go backward before the next model's "
                 "forward pass, and evaluate under NoGradGuard",
                 describe(&leaf));
    }
  }

  void begin(size_t k) {
    buckets.begin(gradient(k), k, before(k));
    begun.push_back(k);
    came[k] = true;
    if (!sums_part()) return;
    sharding->set_used(parameters[k], true);
    // What is summed need not wait for the end, if it is given away then.
    const size_t b = buckets.bucket_of(k);
    if (++there[b] < buckets.members_of(b)) return;
    if (complete) end([&](size_t j) { return buckets.bucket_of(j) == *complete; });
    complete = b;
  }

  bool sums_part() const { return sharding && sharding->gradients(); }
  Division division() const {
    Division d;
    for (const auto& [name, p] : named) {
      d.names.push_back(name);
      if (sums_part()) d.cuts.push_back(sharding->known(p).cuts);
    }
    if (sums_part()) d.halves = Halves::Sum;
    return d;
  }

  // Awaits those of the begun that `which` says; with `used` the ranks compare what they have.
  template <class F> void end(const F& which, const std::vector<uint8_t>& used = {}) {
    const auto rest = std::partition(begun.begin(), begun.end(), which);
    std::vector<size_t> members(begun.begin(), rest);
    std::sort(members.begin(), members.end());
    std::vector<Tensor> gradients;
    for (const size_t k : members) gradients.push_back(gradient(k));
    buckets.end(
        gradients, members, [&](size_t k) { return before(k); }, used);
    begun.erase(begun.begin(), rest);  // If that throws, the next pass clears what is left.
    for (const size_t k : members) {
      if (sums_part()) sharding->keep_own_gradient(parameters[k], part_of_pass());
    }
  }

  double part_of_pass() const { return 1.0 / static_cast<double>(passes()); }

  // What adds nothing, to any number's bits.
  static Tensor nothing(const Tensor& p) { return full_like(p.detach(), -0.0); }

  std::vector<Tensor> before(size_t k) {
    std::vector<Tensor> all;
    for (const auto& leaves : earlier) {
      if (!leaves[k].grad().defined()) leaves[k].set_grad(nothing(parameters[k]));
      all.push_back(leaves[k].grad());
    }
    return all;
  }

  Tensor gradient(size_t k) const {
    Tensor g = parameters[k].grad();
    BRRR_CHECK(g.is_contiguous(), "DataParallel: the gradient of a parameter is not dense");
    return g;
  }

  void finished() {
    if (!std::exchange(reached, false)) return;  // Another model's pass.
    expected = false;
    if (!last_pass()) {
      for (size_t k = 0; k < parameters.size() && !earlier.empty(); ++k) {
        const Tensor& p = parameters[k];
        earlier[static_cast<size_t>(pass())][k].set_grad(p.grad());
        p.set_grad({});
      }
      return set_control(*cell, cell->value + 1);
    }
    // Not where an RngScope around the forward pass has put back what was there before.
    const bool moves = stream() == own_stream();
    if (options.accumulate > 1) set_control(*cell, 0);
    if (size() > 1) exchange();
    drop_earlier();
    for (const Tensor& p : parameters) {
      if (!sums_part() && p.grad().defined()) p.grad().mul_(part_of_pass());
    }
    if (moves) to_stream(after_group(group));
  }

  void exchange() {
    // Those that only earlier passes have used, or that had a gradient before: on all ranks alike.
    for (size_t k = 0; k < parameters.size(); ++k) {
      if (came[k]) continue;
      if (!parameters[k].grad().defined()) {
        const auto has = [&](const auto& leaves) { return leaves[k].grad().defined(); };
        if (std::ranges::none_of(earlier, has)) continue;
        parameters[k].set_grad(nothing(parameters[k]));
      }
      begin(k);
    }
    // A loss that uses no parameter, or an error that was caught, may have kept a rank from the
    // last exchange: the others have waited there, and would be given gradients of its next step.
    std::vector<uint8_t> compared(came.begin(), came.end());
    compared.push_back(static_cast<uint8_t>(steps->value));
    set_control(*steps, 0);
    end([](size_t) { return true; }, compared);
  }
};

void gradients_dropped(const std::vector<Tensor>& parameters) {
  const std::lock_guard lock(DataParallel::State::mutex);
  for (auto* state : DataParallel::State::all) state->dropped(parameters);
}
void gradients_used(const char* who, const std::vector<Tensor>& parameters, bool updates) {
  const std::lock_guard lock(DataParallel::State::mutex);
  for (auto* state : DataParallel::State::all) state->used(who, parameters, updates);
  if (const auto sharding = Sharding::of(parameters)) {
    for (const Tensor& p : parameters) sharding->check_exchanged(who, p);
  }
}

DataParallel::DataParallel(models::Module& module, DataParallelOptions options) {
  BRRR_CHECK(!context.recorder, "DataParallel: make it outside of the step");
  BRRR_CHECK(
      options.accumulate > 0 && options.accumulate <= INT32_MAX && options.bucket_bytes >= 0,
      "DataParallel: accumulate must be from 1 to {}, got {}; bucket_bytes not negative, got {}",
      INT32_MAX, options.accumulate, options.bucket_bytes);
  if (size() > 1) {
    check_alike("DataParallel: the ranks' models or random streams", features(module, options));
    const NoGradGuard guard;
    BRRR_CHECK(!options.in_order || options.accumulate <= Inputs::kMost,
               "DataParallel: in_order keeps the gradients of {} passes apart, {} at most; "
               "accumulate fewer, or set in_order to false",
               options.accumulate, Inputs::kMost);
    for (const auto& [name, t] : module.state_dict()) t.copy_(broadcast(t));
  }
  state_ = std::make_unique<State>(module, options);
  if (state_->passes() == 1) return;
  State::to_stream(state_->after_group(state_->next_group()));
  // A backward pass without a forward pass through it is refused from the beginning.
  if (!context.gradients || !context.gradients->awaited()) context.gradients = state_->hook;
}

DataParallel::~DataParallel() = default;

void DataParallel::begin_pass() {
  if (context.grad_enabled) state_->begin_pass();
}

Tensor DataParallel::operator()(const Tensor& x) {
  if (context.grad_enabled) state_->leave_other();  // Its stream is not the one to go back to.
  const RngState before = rng_state();
  begin_pass();
  const uint64_t begun = rng_state().draw;
  Tensor y = state_->module(x);
  // Maybe an evaluation, of which nothing may be left: recorded steps draw from where they start.
  if (!state_->module.is_training() && rng_state().draw == begun && begun != before.draw) {
    set_rng_state(before);
  }
  return y;
}

models::Module& DataParallel::module() const { return state_->module; }

Tensor DataParallel::part(const Tensor& batch) const {
  const int64_t n = batch.dim() > 0 ? batch.size(0) : 0;
  BRRR_CHECK(n > 0 && n % size() == 0, "DataParallel: a batch of {} does not divide among {} ranks",
             describe(batch), size());
  const int64_t own = n / size();
  return size() == 1 ? batch : batch.narrow(0, rank() * own, own);
}

}  // namespace brrr::dist
