// StepOptions::verify_every: compares a replay with an eager run on cloned state.
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

// The first element of the range in which the two differ, or -1.
static int64_t first_difference(const Recording& r, const Extent& e, const Storage& a,
                                const Storage& b) {
  if (e.value == kNone) return -1;
  const DType t = r.value(e.value).dtype;
  const std::vector<char> x = on_host(a, e, t), y = on_host(b, e, t);
  const auto at = std::mismatch(x.begin(), x.end(), y.begin()).first;
  return at == x.end() ? -1 : (at - x.begin()) / static_cast<int64_t>(itemsize(t));
}

// Whether this call is verified. That runs the step's collectives twice, so all ranks verify or
// none, although one may have replayed an entry more often than another or only now have recorded
// its own: they do if verification is due on any rank and the call is a replay on all.
bool StepCore::agree_to_verify(const Recording& r, bool due, bool by_plan) const {
  const auto is_collective = [](const Instr& i) { return i.op->communicates; };
  if (!options_.verify_every || dist::size() == 1 || std::ranges::none_of(r.instrs, is_collective))
    return due && by_plan;
  int64_t votes[] = {due, by_plan};
  dist::exchange(
      "a vote of a step's verify_every, which with its mode must be the same on all ranks",
      dist::Row(kInt64, {{reinterpret_cast<char*>(votes), 2}}), dist::Halves::Both);
  return votes[0] > 0 && votes[1] == dist::size();
}

// Detects memory that the function wrote through a pointer after an op had used it: eager mode
// computes with the old contents, a replay with the new ones.
void StepCore::check_foreign_writes(const Recording& r, const Pass& pass) {
  for (size_t k = 0; k < pass.first_seen().size(); ++k) {
    const Ref<Storage>& then = pass.first_seen()[k];
    if (!then) continue;
    const Binding& now = pass.bindings()[k];
    // Compare the used range only: the rest of the storage may change while the step runs.
    const Extent used = r.extent(r.externals[k], now.base);
    const int64_t at = first_difference(r, used, *then, *now.storage);
    BRRR_CHECK(
        at < 0,
        "step: verify_every: while the function ran, element {} of {}, an input or state, "
        "was written by something other than an operation of the step (through a pointer, into "
        "a buffer that from_blob shows without a copy, or by another thread) after an "
        "operation had used it; graph mode reads such memory once, after the function: write "
        "it before the call, or with copy_() in the function",
        at, r.describe(used.value));
  }
}

// Copies the bytes around the used range, which others may have written before the replay does.
static void take_surroundings(Storage& then, const Storage& now, const Extent& used) {
  auto* const to = static_cast<char*>(then.data);
  const auto* const from = static_cast<const char*>(now.data);
  std::copy(from, from + used.low, to);
  std::copy(from + used.high, from + now.bytes, to + used.high);
}

// Poisons the outputs first, so that elements which the replay does not write are detected.
void StepCore::verify(Entry& e, Session& s) {
  const Recording& r = e.recording;
  const std::vector<Binding>& bindings = s.pass.bindings();
  std::vector<Binding> cloned;
  for (size_t k = 0; k < bindings.size(); ++k) {
    const Ref<Storage> then = s.watch ? s.pass.first_seen()[k] : Ref<Storage>();
    cloned.push_back({then ? then : clone_storage(*bindings[k].storage), bindings[k].base});
  }
  const auto shadow = [&] {
    const PlainScope plain;  // Neither recorded nor observed.
    return walk(r, cloned, s.pass.control());
  }();
  UndoLog undo;  // Undoes a replay that turns out wrong.
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
    BRRR_CHECK(
        at < 0,
        "step: verify_every: the replay, or another thread meanwhile, wrote outside {} of an "
        "input or state, element {} of the memory that it lies in",
        r.describe(e.value), at);
  }
  std::lock_guard lock(mutex_);
  ++stats_.verified;
}

}  // namespace brrr::graph
