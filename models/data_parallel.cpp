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

// A stream has 2^kPassBits draws; its number is the upper part of RngState::draw.
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

// Lines that must be equal on all ranks.
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
  // A thread's context points to it. It is never freed: any thread may destroy the DataParallel.
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
        ready_count(buckets.size()),
        exchanged(parameters.size()),
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

  // All live states: gradients_dropped() and gradients_used() notify each of them.
  static inline std::mutex mutex;
  static inline auto& all = *new std::vector<State*>;

  Hook* hook;
  models::Module& module;
  DataParallelOptions options;
  std::vector<NamedTensor> named;  // Roughly in the order in which backward reaches them.
  std::vector<Tensor> parameters;
  std::vector<DType> dtypes;
  std::shared_ptr<Sharding> sharding;
  Buckets buckets;
  std::vector<size_t> ready_count;       // Gradients ready in this pass, by bucket.
  std::optional<size_t> pending_bucket;  // A bucket that is ready and whose sum is in flight.
  std::vector<bool> exchanged;           // By parameter: its exchange began in this backward pass.
  std::vector<bool> cleared;            // Parameters with a gradient dropped since this pass began.
  bool restarts = false;                // The next pass is the first of a step: see dropped().
  std::atomic<bool> expected{false};    // A forward pass has begun, its backward pass not ended.
  std::atomic<std::thread::id> thread;  // The thread of that forward pass.
  std::unordered_map<const TensorImpl*, size_t> index;
  // Optimiser steps since the last exchange. Starts at 1, the value before every later exchange, so
  // that the recording of the first call serves the next ones.
  const Ref<ControlCell> steps = control_cell(1, ControlCell::Mark);
  // The index of the pass within its step; a recorded step that throws restores the cell.
  const Ref<ControlCell> cell = control_cell(0);
  uint64_t group = 0;             // The step's passes use streams group * streams() and following.
  std::vector<size_t> in_flight;  // Parameters whose exchange has begun and is not awaited yet.
  bool reached = false;           // Backward has reached one of the parameters and has not ended.
  // For each pass but the last, a leaf per parameter that holds the pass's gradient as its own: a
  // step that throws restores it like any other gradient.
  std::vector<std::vector<Tensor>> earlier;

  int64_t pass() const { return static_cast<int64_t>(cell->value); }
  bool last_pass() const { return pass() + 1 == options.accumulate; }
  uint64_t passes() const { return static_cast<uint64_t>(size() * options.accumulate); }

  static uint64_t stream() { return rng_state().draw >> kPassBits; }
  uint64_t own_stream() const {
    return group * streams() + static_cast<uint64_t>(rank() * options.accumulate + pass());
  }
  // The last stream of a group serves the draws between steps, however many a rank makes.
  uint64_t streams() const { return passes() + 1; }
  uint64_t after_group(uint64_t g) const { return g * streams() + passes(); }
  // Also right after a forward pass without a backward pass, which leaves each rank in a stream of
  // its own, and after steps with another number of passes, which numbered groups differently.
  uint64_t next_group() const { return stream() / streams() + 1; }
  static void set_stream(uint64_t id) { set_rng_state({rng_state().seed, id << kPassBits}); }

  // Leaves the stream of an abandoned pass, which differs from rank to rank.
  void leave_stream() const {
    if (expected && stream() == own_stream()) set_stream(after_group(group));
  }

  // Another model that still expects a backward pass was evaluated, or its pass was abandoned.
  void leave_other_stream() const {
    const bool awaits = context.gradients && context.gradients != hook;
    const State* const other =
        awaits ? static_cast<Hook*>(context.gradients)->state.load() : nullptr;
    if (other && other->thread.load() == std::this_thread::get_id()) other->leave_stream();
  }

  void begin_pass() {
    if (passes() == 1) return;
    check_parameters();
    // A further forward pass for the same backward pass.
    if (expected && !reached && !restarts && context.gradients == hook && stream() == own_stream())
      return;
    restarts = false;
    cleared.assign(cleared.size(), false);
    in_flight.clear();  // Left over from a pass that threw.
    ready_count.assign(ready_count.size(), 0);
    pending_bucket.reset();
    exchanged.assign(exchanged.size(), false);
    reached = false;
    leave_other_stream();
    if (pass() == 0) {
      group = next_group();
      drop_earlier();
      for (auto& leaves : earlier) {  // The model may have been moved.
        for (size_t k = 0; k < leaves.size(); ++k) {
          const bool same = leaves[k].impl()->storage == parameters[k].impl()->storage;
          if (!same) leaves[k] = parameters[k].detach();
        }
      }
    }
    set_stream(own_stream());
    context.gradients = hook;
    thread = std::this_thread::get_id();
    expected = true;
  }

  // Once the gradients of all parameters that require one have been dropped, in one call or
  // several, the step restarts, also after a pass that threw. A pass whose forward has run and
  // whose backward has not becomes the first pass.
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
    restarts = true;
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
    // Checked first: other members must not be read if another model is in a pass on its thread.
    const auto is_own = [&](const Tensor& t) { return index.count(t.impl()) != 0; };
    if (std::ranges::none_of(gradients_of, is_own)) return;
    BRRR_CHECK(
        pass() == 0,
        "{}: called after {} of {} backward passes (accumulate), before DataParallel has exchanged "
        "the gradients; call it after the last pass, or discard an incomplete group with the "
        "module's zero_grad()",
        who, pass(), options.accumulate);
    if (updates && size() > 1) set_control(*steps, std::min(steps->value + 1, 255.0));
  }

  // Buckets depend on the parameters' dtypes, and a sharding holds views of the parameters.
  void check_parameters() const {
    for (size_t k = 0; k < named.size(); ++k) {
      const auto& [name, p] = named[k];
      BRRR_CHECK(p.dtype() == dtypes[k], "DataParallel: parameter {} was {} and is {} now; {}",
                 name, brrr::name(dtypes[k]), describe(p), Sharding::kRemedy);
      if (sharding) sharding->check_in_place("DataParallel", p);
    }
  }

  void ready(TensorImpl& leaf) {
    const auto at = index.find(&leaf);
    if (at == index.end()) return check_others(leaf);
    BRRR_CHECK(expected,
               "DataParallel: a backward pass into parameter {}, {}, without a forward pass "
               "through ddp(x): it would not be exchanged. Call ddp(x) instead of model(x), sum "
               "the losses and call backward() once, or call begin_pass() before each pass",
               named[at->second].first, describe(&leaf));
    reached = true;
    if (!last_pass() || size() == 1) return;
    begin(at->second);
  }

  void check_others(TensorImpl& leaf) const {
    const std::lock_guard lock(mutex);
    for (const State* s : all) {
      if (!s->expected || s->thread.load() != std::this_thread::get_id()) continue;
      BRRR_CHECK(
          !s->index.count(&leaf),
          "DataParallel: a backward pass into {}, of another DataParallel, after this one's "
          "forward pass: a thread trains one at a time; call backward() before the next model's "
          "forward pass, and evaluate under NoGradGuard",
          describe(&leaf));
    }
  }

  void begin(size_t k) {
    buckets.begin(gradient(k), k, earlier_gradients(k));
    in_flight.push_back(k);
    exchanged[k] = true;
    if (!sums_part()) return;
    sharding->set_used(parameters[k], true);
    // Await finished buckets early, so that their unsharded gradients are freed.
    const size_t b = buckets.bucket_of(k);
    if (++ready_count[b] < buckets.members_of(b)) return;
    if (pending_bucket) end([&](size_t j) { return buckets.bucket_of(j) == *pending_bucket; });
    pending_bucket = b;
  }

  bool sums_part() const { return sharding && sharding->gradients(); }
  Division division() const {
    Division d;
    for (const auto& [name, p] : named) {
      d.names.push_back(name);
      if (sums_part()) d.cuts.push_back(sharding->entry(p).cuts);
    }
    if (sums_part()) d.halves = Halves::Sum;
    return d;
  }

  // Awaits the in-flight exchanges for which which(k) holds. The ranks compare `used`, if given.
  template <class F> void end(const F& which, const std::vector<uint8_t>& used = {}) {
    const auto rest = std::partition(in_flight.begin(), in_flight.end(), which);
    std::vector<size_t> members(in_flight.begin(), rest);
    std::sort(members.begin(), members.end());
    std::vector<Tensor> gradients;
    for (const size_t k : members) gradients.push_back(gradient(k));
    buckets.end(
        gradients, members, [&](size_t k) { return earlier_gradients(k); }, used);
    in_flight.erase(in_flight.begin(), rest);  // If end() throws, the next pass clears the rest.
    for (const size_t k : members) {
      if (sums_part()) sharding->keep_own_gradient(parameters[k], part_of_pass());
    }
  }

  double part_of_pass() const { return 1.0 / static_cast<double>(passes()); }

  // -0.0 is the neutral element of addition, bit for bit.
  static Tensor negative_zeros(const Tensor& p) { return full_like(p.detach(), -0.0); }

  std::vector<Tensor> earlier_gradients(size_t k) {
    std::vector<Tensor> all;
    for (const auto& leaves : earlier) {
      if (!leaves[k].grad().defined()) leaves[k].set_grad(negative_zeros(parameters[k]));
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
    // False if an RngScope around the forward pass has restored the previous state.
    const bool moves = stream() == own_stream();
    if (options.accumulate > 1) set_control(*cell, 0);
    if (size() > 1) exchange();
    drop_earlier();
    for (const Tensor& p : parameters) {
      if (!sums_part() && p.grad().defined()) p.grad().mul_(part_of_pass());
    }
    if (moves) set_stream(after_group(group));
  }

  void exchange() {
    // Parameters that only earlier passes used, or with an older gradient: alike on all ranks.
    for (size_t k = 0; k < parameters.size(); ++k) {
      if (exchanged[k]) continue;
      if (!parameters[k].grad().defined()) {
        const auto has = [&](const auto& leaves) { return leaves[k].grad().defined(); };
        if (std::ranges::none_of(earlier, has)) continue;
        parameters[k].set_grad(negative_zeros(parameters[k]));
      }
      begin(k);
    }
    // A rank whose loss uses no parameter, or that caught an error, may have missed the last
    // exchange: the others are still waiting in it, and would receive gradients of its next step.
    std::vector<uint8_t> compared(exchanged.begin(), exchanged.end());
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
  State::set_stream(state_->after_group(state_->next_group()));
  // From now on a backward pass without a forward pass through ddp(x) throws.
  if (!context.gradients || !context.gradients->awaited()) context.gradients = state_->hook;
}

DataParallel::~DataParallel() = default;

void DataParallel::begin_pass() {
  if (context.grad_enabled) state_->begin_pass();
}

Tensor DataParallel::operator()(const Tensor& x) {
  if (context.grad_enabled)
    state_->leave_other_stream();  // `before` must not be in the other's stream.
  const RngState before = rng_state();
  begin_pass();
  const uint64_t at_start = rng_state().draw;
  Tensor y = state_->module(x);
  // Perhaps an evaluation, which must not move the stream: recorded steps draw from its position.
  if (!state_->module.is_training() && rng_state().draw == at_start && at_start != before.draw) {
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
