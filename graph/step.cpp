// Calls of a step: which entry serves a call, and whether by replay or by the walker.
#include "graph/step.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "core/check.h"
#include "graph/core.h"
#include "graph/numerics.h"
#include "ops/factory_ops.h"

namespace brrr::graph {

StepCore::StepCore(StepOptions options) : options_(options) {
  BRRR_CHECK(options.max_entries >= 1, "step: max_entries is {}; at least 1 recording is needed",
             options.max_entries);
  BRRR_CHECK(options.verify_every == 0 || options.numerics == Numerics::Strict,
             "step: verify_every compares bits, which Numerics::Fast does not keep; use Strict");
  BRRR_CHECK(options.memory_budget >= 0 && std::isfinite(options.memory_budget),
             "step: memory_budget is {}; give a fraction below 1, bytes, or 0 for none",
             options.memory_budget);
  BRRR_CHECK(options.verify_every >= 0, "step: verify_every is {}; give 0 for never",
             options.verify_every);
}

std::unique_ptr<Session> StepCore::open_session(size_t arguments) {
  std::lock_guard lock(mutex_);
  arguments_ = std::max(arguments_, arguments);
  if (sessions_.empty()) sessions_.push_back(std::make_unique<Session>());
  auto s = std::move(sessions_.back());
  sessions_.pop_back();
  ++stats_.calls;
  recording_debt_ = std::max<int64_t>(0, recording_debt_ - 1);
  s->entries = entries_;
  s->candidates.clear();
  for (const auto& e : s->entries) s->candidates.push_back(&e->recording);
  s->results.clear();
  s->replaced.clear();
  s->transient = false;
  // Must be known before the call: writes of the function other than by ops are detected by
  // comparing with earlier copies. At 1 a recording that is yet to be made is due, too.
  s->watch = options_.verify_every &&
             (options_.verify_every == 1 ||
              std::ranges::any_of(entries_, [&](const auto& e) { return verification_due(*e); }));
  return s;
}

void StepCore::close_session(std::unique_ptr<Session> s) {
  std::lock_guard lock(mutex_);
  sessions_.push_back(std::move(s));
}

// The tensors of the last call, kept for freeze(), would occupy memory during this one.
// Released without the lock: a deleter of foreign memory may call back.
void StepCore::release_last_call(Session& s) {
  {
    std::lock_guard lock(mutex_);
    if (is_frozen_) return;
    last_.entry.reset();
    s.bindings.swap(last_.effects.bindings);
  }
  s.bindings.clear();
}

std::vector<Tensor>* StepCore::run(const Tensor* const* args, size_t n,
                                   void (*body)(void*, ResultList&), void* ctx) {
  // A step inside a step is inlined into the outer recording.
  if (options_.mode == Mode::Eager || context.recorder) {
    ResultList ignored;
    std::optional<CheckNumericsGuard> check;
    if (!context.recorder) {
      if (options_.check_numerics) check.emplace();
      std::lock_guard lock(mutex_);
      ++stats_.calls;
      arguments_ = std::max(arguments_, n);
    }
    body(ctx, ignored);
    return nullptr;
  }
  struct Results : std::vector<Tensor> {};
  Results& results = thread_own<Results>();  // So that a replay allocates nothing.
  results.clear();
  auto s = open_session(n);
  bool played = false;
  std::shared_ptr<Entry> e;  // Keeps the plan alive for report_faults(), even if evicted meanwhile.
  try {
    e = play(*s, args, n, results);
    played = e != nullptr;
    if (played) {
      execute(*e, *s);
      s->pass.commit();
      s->pass.release(nullptr);
    } else {
      release_last_call(*s);
      const auto begin = Clock::now();
      s->pass.begin(s->candidates, s->watch);
      {
        const Held recorder(context.recorder, &s->pass);
        body(ctx, s->results);
      }
      e = find_entry(*s, seconds_since(begin));
      check_foreign_writes(e->recording, s->pass);
      s->pass.collect_effects();
      execute(*e, *s);
      s->pass.commit();
      try {
        remember(e, *s, args, n);
      } catch (const std::bad_alloc&) {  // The step is done.
        s->pass.release(nullptr);
        std::lock_guard lock(mutex_);
        last_.refusal = "out of memory while recording its effects; call it once more";
      }
    }
  } catch (...) {
    results.clear();
    s->pass.abort();
    close_session(std::move(s));
    throw;
  }
  Plan* const plan = s->plan;
  close_session(std::move(s));
  if (plan) plan->report_faults();
  return played ? &results : nullptr;
}

// The entry of this call: the one that matched, or a new one.
std::shared_ptr<Entry> StepCore::find_entry(Session& s, double seconds) {
  const int match = s.pass.finish();
  std::lock_guard lock(mutex_);
  if (match >= 0) {
    const auto e = s.entries[static_cast<size_t>(match)];
    const auto at = std::ranges::find(entries_, e);
    if (at != entries_.end()) std::rotate(entries_.begin(), at, at + 1);
    return e;
  }
  const std::string why = s.pass.difference();
  BRRR_CHECK(entries_.empty() || options_.on_new_entry != Policy::Error,
             "step: this call matches no recording and on_new_entry is Error: {}", why);
  auto e = std::make_shared<Entry>();
  e->recording = std::move(s.pass.recording());
  s.pass.moved_to(e->recording);
  s.entries.push_back(e);  // Keeps it alive during an abort, even if nothing else does.
  s.transient = !entries_.empty() && options_.on_new_entry == Policy::Eager;
  if (!why.empty()) stats_.last_difference = why;
  if (s.transient) return e;  // Not kept; reported as a fallback.
  ++stats_.recordings;
  stats_.record_seconds += seconds;
  if (!why.empty() && log_.size() < 64) log("new recording: " + why);  // Leaves room for warnings.
  if ((recording_debt_ += 9) >= 16 * int64_t{options_.max_entries}) {
    warn(
        "lately, more than every ninth call made a recording, which takes longer than many eager "
        "calls; fewer shapes, a larger max_entries or Mode::Eager would help");
  }
  entries_.insert(entries_.begin(), e);
  if (entries_.size() > static_cast<size_t>(options_.max_entries)) {
    entries_.pop_back();
    ++stats_.evictions;
  }
  return e;
}

// Returns whether the line is new.
bool StepCore::log(const std::string& line) {
  if (log_.size() >= 128 || std::ranges::find(log_, line) != log_.end()) return false;
  log_.push_back(line);
  return true;
}

void StepCore::warn(const std::string& line) {
  if (log(line)) std::fprintf(stderr, "brrr: step: %s\n", line.c_str());
}

void StepCore::fall_back(const std::string& why) {
  BRRR_CHECK(!options_.require_graph, "step: require_graph: {}", why);
  std::lock_guard lock(mutex_);
  ++stats_.fallbacks;
  stats_.last_fallback = why;
  warn("fallback to the reference walker: " + why);
}

void StepCore::build(Entry& e, const Session& s) {
  if (context.observer) context.observer->pause();
  e.failure.clear();
  e.retry_at = 4 * (e.calls + 1);
  try {
    e.plan = Plan::make(e.recording, options_, s.replaced);
    e.built = e.plan.get();
    if (options_.mode != Mode::Auto) e.unfused.reset();
  } catch (const std::exception& error) {  // System errors, too: the walker needs no kernels.
    e.failure = error.what();
  }
  if (context.observer) context.observer->resume();
  std::lock_guard lock(mutex_);
  if (!e.plan) return;
  const ReplayCounts& made = e.plan->counts();
  stats_.fuse_seconds += made.fuse_seconds;
  stats_.plan_seconds += made.plan_seconds;
  stats_.build_seconds += made.build_seconds;
  stats_.build_cached = made.build_cached;
  if (made.build_cached) cached_seconds_ += made.build_seconds;
}

// Whether this call is a replay. Kernels are built on an entry's second call, because many entries
// never get one.
bool StepCore::choose_plan(Entry& e, const Session& s) {
  if (options_.check_numerics) return false;
  if (s.transient) {
    fall_back("a new shape of the step runs eagerly (on_new_entry is Eager): " +
              s.pass.difference());
    return false;
  }
  // A failed build may have lacked memory: it is retried, at call counts that grow fourfold.
  const uint64_t due = e.failure.empty() ? !options_.build_at_first_call : e.retry_at;
  if (!e.plan && e.calls >= due) build(e, s);
  if (!e.failure.empty()) {
    fall_back(e.failure);
    return false;
  }
  if (!e.plan) return false;
  if (options_.mode != Mode::Auto) return true;
  return e.trials < kAutoTrials ? e.trials % 2 == 0 : !e.prefers_eager();
}

static void replay(Plan& plan, Session& s) {
  plan.run({s.pass.bindings(), s.pass.control().data(), s.survivors.data(), s.replaced});
}

// Runs op by op, without generated kernels: in planned memory where possible, so that a first call
// needs no more memory than eager mode; else by the walker.
void StepCore::run_unfused(Entry& e, Session& s, bool shared) {
  const bool planned = !shared && !options_.check_numerics;
  if (planned && !e.unfused) e.unfused = Plan::make_unfused(e.recording, options_);
  if (planned && e.unfused) return replay(*e.unfused, s);
  std::optional<CheckNumericsGuard> check;
  if (options_.check_numerics) check.emplace();
  // A first call, slow anyway, keeps undo copies on the host, to need no more memory than eager.
  const bool aside = e.calls == 0 && !s.transient;
  auto made = walk(e.recording, s.pass.bindings(), s.pass.control(), aside);
  for (size_t k = 0; k < made.size(); ++k) {
    std::swap(s.survivors[k]->data, made[k]->data);
    s.survivors[k]->bytes = made[k]->bytes;
  }
}

void StepCore::execute(Entry& e, Session& s) {
  std::lock_guard lock(e.mutex);
  const Recording& r = e.recording;
  s.survivors.clear();
  for (uint32_t st : r.survivors) s.survivors.push_back(s.pass.live(st));
  s.pass.find_replaced(s.replaced);
  const bool shared = share_memory(s.pass.bindings());
  if (shared) {  // A plan finds dependences by storage.
    fall_back(
        "two tensors from outside the step overlap in memory (from_blob without a copy); make "
        "one a view of the other");
  }
  const bool by_plan = !shared && choose_plan(e, s);
  const bool trial = options_.mode == Mode::Auto && e.plan && e.trials < kAutoTrials &&
                     !context.observer;  // An observer takes time.
  // Exclude work that a GPU has queued before, include all that this call queues.
  auto time = [&] {
    if (trial) backend(e.plan->device().type).synchronize();
    return trial ? Clock::now() : Clock::time_point();
  };
  const auto begin = time();
  const bool due = s.watch && verification_due(e), verifies = agree_to_verify(r, due, by_plan);
  if (by_plan) {
    ++e.replays;
    verifies ? verify(e, s) : replay(*e.plan, s);
  } else {
    run_unfused(e, s, shared);
  }
  if (trial) {
    double& best = by_plan ? e.replay_seconds : e.walk_seconds;
    const double now = std::chrono::duration<double>(time() - begin).count();
    best = best == 0 ? now : std::min(best, now);
    if (++e.trials == kAutoTrials && !e.prefers_eager()) e.unfused.reset();
  }
  ++e.calls;
  s.plan = e.plan.get();
  std::lock_guard for_all(mutex_);
  // Also after a watched call that the walker served: it is not watched again soon.
  e.turn = due || verifies ? 1 : e.turn + by_plan;
  stats_.replays += by_plan;
  stats_.ops_per_replay = r.instrs.size();
  if (!e.plan) return;
  const MemoryPlan& m = e.plan->memory();
  stats_.kernels_per_replay = e.plan->kernels();
  stats_.fused_kernels = e.plan->generated_kernels();
  stats_.arena_bytes = m.arena_bytes;
  stats_.lower_bound_bytes = m.lower_bound_bytes;
  stats_.in_place = m.in_place;
  stats_.rematerialised = e.plan->rematerialised().instrs;
  stats_.in_place_candidates = m.in_place_candidates;
  const ReplayCounts& c = e.plan->counts();
  stats_.launches_per_replay = c.launches;
  stats_.capture_seconds = c.capture_seconds;
}

// --- the rest of the public interface ------------------------------------------------------------

StepStats StepCore::stats() {
  std::lock_guard lock(mutex_);
  stats_.entries = entries_.size();
  return stats_;
}

Tensor StepCore::input(int index, const IntList& sizes, DType dtype, Device device) {
  BRRR_CHECK(index >= 0, "step.input: argument {} does not exist", index);
  for (int64_t n : sizes) {
    BRRR_CHECK(n >= 0, "step.input: sizes must not be negative, got {}", to_string(sizes));
  }
  backend(device);  // Throws where there is no such device.
  check_host_access("step.input", nullptr);
  std::lock_guard lock(mutex_);
  BRRR_CHECK(stats_.calls == 0 || index < static_cast<int>(arguments_),
             "step.input: argument {} does not exist: the step has been called with {}", index,
             arguments_);
  auto at = std::ranges::find_if(inputs_, [&](const auto& slot) {
    const Tensor& t = slot.second;
    return slot.first == index && t.sizes() == sizes && t.dtype() == dtype && t.device() == device;
  });
  if (at != inputs_.end()) {
    std::rotate(at, at + 1, inputs_.end());
    return inputs_.back().second;
  }
  inputs_.emplace_back(index, zeros(sizes, dtype, device));
  // At most as many as there may be recordings: drop the argument's oldest.
  const auto same = [&](const auto& slot) { return slot.first == index; };
  const bool full = std::ranges::count_if(inputs_, same) > options_.max_entries;
  if (full) inputs_.erase(std::ranges::find_if(inputs_, same));
  return inputs_.back().second;
}

std::unique_ptr<StepBase> make_step(StepOptions options) {
  return std::make_unique<StepCore>(options);
}

}  // namespace brrr::graph
