// StepOptions::verify_every: a replay beside an eager run on cloned state.
#include <algorithm>

#include "core/check.h"
#include "graph/compare.h"
#include "graph/core.h"
#include "ops/kinds/exchange.h"

namespace brrr::graph {

static std::vector<char> on_host(const Storage& s, const Extent& e, DType t) {
  std::vector<char> bytes(static_cast<size_t>(e.high - e.low));
  backend(s.device.type)
      .copy_to_host(bytes.data(), static_cast<const char*>(s.data) + e.low, bytes.size());
  unify_nans(t, bytes.data(), bytes.size() / itemsize(t));
  return bytes;
}

// The first element in which the two differ there, or -1.
static int64_t first_difference(const Recording& r, const Extent& e, const Storage& a,
                                const Storage& b) {
  if (e.value == kNone) return -1;
  const DType t = r.value(e.value).dtype;
  const std::vector<char> x = on_host(a, e, t), y = on_host(b, e, t);
  const auto at = std::mismatch(x.begin(), x.end(), y.begin()).first;
  return at == x.end() ? -1 : (at - x.begin()) / static_cast<int64_t>(itemsize(t));
}

// Whether this call is verified. That makes its collectives twice, so with several ranks it is for
// all of them or for none, though one may have replayed an entry more often than another, or have
// only now recorded its own: it is if it is due on a rank, and a replay on all.
bool StepCore::agree_to_verify(const Recording& r, bool due, bool by_plan) const {
  const auto is_collective = [](const Instr& i) { return i.op->reaches_out; };
  if (!options_.verify_every || dist::size() == 1 || std::ranges::none_of(r.instrs, is_collective))
    return due && by_plan;
  int64_t votes[] = {due, by_plan};
  dist::exchange(
      "a vote of a step's verify_every, which with its mode has to be alike on all ranks",
      dist::Row(kInt64, {{reinterpret_cast<char*>(votes), 2}}), dist::Halves::Both);
  return votes[0] > 0 && votes[1] == dist::size();
}

// What the function wrote through a pointer after an operation had used the memory: eager mode has
// computed with what was there before, a replay computes with what is there now.
void StepCore::check_unwritten(const Recording& r, const Pass& pass) {
  for (size_t k = 0; k < pass.first_seen().size(); ++k) {
    const Ref<Storage>& then = pass.first_seen()[k];
    if (!then) continue;
    const Binding& now = pass.bindings()[k];
    // What else lies there may change while the step runs.
    const Extent used = r.extent(r.externals[k], now.base);
    const int64_t at = first_difference(r, used, *then, *now.storage);
    BRRR_CHECK(
        at < 0,
        "step: verify_every: while the function ran, element {} of {}, an input or state, "
        "was written by something that is no operation of the step (through a pointer, into "
        "a buffer that from_blob shows without a copy, or by another thread) after an "
        "operation had used it; graph mode reads such memory once, after the function: write "
        "it before the call, or with copy_() in the function",
        at, r.describe(used.value));
  }
}

// Others may have written there while the function ran; what the replay writes there is looked for.
static void take_surroundings(Storage& then, const Storage& now, const Extent& used) {
  auto* const to = static_cast<char*>(then.data);
  const auto* const from = static_cast<const char*>(now.data);
  std::copy(from, from + used.low, to);
  std::copy(from + used.high, from + now.bytes, to + used.high);
}

// Outputs are poisoned first.
void StepCore::verify(Entry& e, Session& s) {
  const Recording& r = e.recording;
  const std::vector<Binding>& bindings = s.pass.bindings();
  std::vector<Binding> cloned;
  for (size_t k = 0; k < bindings.size(); ++k) {
    const Ref<Storage> then = s.watch ? s.pass.first_seen()[k] : Ref<Storage>();
    cloned.push_back({then ? then : clone_storage(*bindings[k].storage), bindings[k].base});
  }
  const auto shadow = [&] {
    const PlainScope plain;  // The shadow is none of the step's work.
    return walk(r, cloned, s.pass.control());
  }();
  UndoLog undo;  // A replay that turns out wrong has not happened.
  for (size_t k = 0; k < bindings.size(); ++k) {
    if (r.written[r.externals[k]]) undo.save(*bindings[k].storage);
  }
  for (Storage* out : s.survivors) {
    allocate(*out);
    const std::vector<char> poison(out->bytes, '\xff');
    backend(out->device.type).copy_from_host(out->data, poison.data(), out->bytes);
  }
  for (size_t k = 0; s.watch && k < bindings.size(); ++k) {
    const Ref<Storage>& then = s.pass.first_seen()[k];
    if (!then || !r.written[r.externals[k]]) continue;
    take_surroundings(*then, *bindings[k].storage, r.extent(r.externals[k], bindings[k].base));
  }
  e.plan->run({bindings, s.pass.control().data(), s.survivors.data(), {}});
  auto compare = [&](uint32_t storage, const Extent& e, const Storage& got,
                     const Storage& expected) {
    const int64_t at = first_difference(r, e, got, expected);
    BRRR_CHECK(at < 0, "step: verify_every: replay and eager differ in {} of {}, element {}",
               r.describe(e.value),
               r.storages[storage].origin == Origin::External
                   ? "an input or state"
                   : r.instrs[r.storages[storage].maker].op->name,
               at);
  };
  for (size_t k = 0; k < shadow.size(); ++k) {
    compare(r.survivors[k], r.extent(r.survivors[k]), *s.survivors[k], *shadow[k]);
  }
  for (size_t k = 0; k < cloned.size(); ++k) {
    const Storage& its = *bindings[k].storage;
    Extent e = r.extent(r.externals[k], bindings[k].base);
    compare(r.externals[k], e, its, *cloned[k].storage);
    if (!r.written[r.externals[k]]) continue;
    e.low = 0, e.high = static_cast<int64_t>(its.bytes);
    const int64_t at = first_difference(r, e, its, *cloned[k].storage);
    BRRR_CHECK(at < 0,
               "step: verify_every: the replay, or another thread meanwhile, wrote beside {} of an "
               "input or state, element {} of the memory that it lies in",
               r.describe(e.value), at);
  }
  std::lock_guard lock(mutex_);
  ++stats_.verified;
}

}  // namespace brrr::graph
