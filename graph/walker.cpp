#include "graph/walker.h"

#include <algorithm>

#include "core/backend.h"
#include "core/check.h"
#include "graph/schedule.h"
#include "core/context.h"

namespace brrr::graph {

void UndoLog::save(Storage& s) {
  for (const auto& [storage, copy] : saved_) {
    if (storage.get() == &s) return;
  }
  Tensor copy = raw_empty({static_cast<int64_t>(s.bytes)}, kUInt8, s.device);
  backend(s.device.type).copy(copy.impl()->data(), s.data, s.bytes);
  saved_.emplace_back(Ref<Storage>::share(&s), std::move(copy));
}

void UndoLog::restore() noexcept {
  for (const auto& [s, copy] : saved_) {
    backend(s->device.type).copy(s->data, copy.impl()->data(), s->bytes);
  }
}

namespace {

class Walk {
 public:
  Walk(const Recording& r, const std::vector<Binding>& bindings,
       const std::vector<int64_t>& control)
      : r_(r),
        bindings_(bindings),
        control_(control),
        values_(r.values.size()),
        last_use_(r.values.size(), 0),
        survivors_(r.survivors.size()) {
    for (size_t at = 0; at < r.instrs.size(); ++at) {
      const Instr& i = r.instrs[at];
      r.each_operand(i, [&](uint32_t id, bool) { last_use_[id] = at; });
      const bool takes_memory = !i.op->is_view() && (!i.into || allocates(r, i));
      if (takes_memory || can_fail(r, i) || context.observer) last_fallible_ = at;
    }
  }

  ~Walk() { context.scope = outer_; }
  Walk(const Walk&) = delete;
  Walk& operator=(const Walk&) = delete;

  std::vector<Ref<Storage>> run() {
    context.scope = &module_;
    try {
      for (size_t at = 0; at < r_.instrs.size(); ++at) step(at);
    } catch (...) {
      undo_.restore();
      throw;
    }
    values_.clear();
    return std::move(survivors_);
  }

 private:
  TensorImpl* value(uint32_t id) {
    if (id == kNone) return nullptr;
    if (!values_[id].defined()) {
      const Value& v = r_.values[id];
      const Binding& b = bindings_[r_.storages[v.storage].maker];
      values_[id] =
          tensor_on(*b.storage, v.dtype, v.size_list(), v.stride_list(), v.offset + b.base);
    }
    return values_[id].impl();
  }

  void step(size_t at) {
    const Instr& i = r_.instrs[at];
    std::vector<TensorImpl*> in(i.n_in);
    for (int k = 0; k < i.n_in; ++k) in[static_cast<size_t>(k)] = value(r_.in(i)[k]);
    OpCall call(*i.op, in.data(), i.n_in, i.n_out);
    call.into = i.into;
    call.attrs = i.attrs;
    uint32_t word = i.control;
    i.attrs.each_dynamic([&](int w) { call.attrs.v[w] = control_[word++]; });
    for (int k = 0; i.into && k < i.n_out; ++k) {
      TensorImpl* t = value(r_.out(i)[k]);
      call.out[k] = Tensor(Ref<TensorImpl>::share(t));
      const StorageInfo& info = r_.storages[r_.values[r_.out(i)[k]].storage];
      if (info.origin == Origin::External && at <= last_fallible_) {
        undo_.save(*t->storage);
      }
    }
    module_.name = &r_.paths[i.path];
    detail::run_now(call);
    for (int k = 0; !i.into && k < i.n_out; ++k) {
      const uint32_t id = r_.out(i)[k];
      const uint32_t storage = r_.values[id].storage;
      const auto slot = std::lower_bound(r_.survivors.begin(), r_.survivors.end(), storage);
      if (slot != r_.survivors.end() && *slot == storage && r_.storages[storage].maker == at) {
        survivors_[static_cast<size_t>(slot - r_.survivors.begin())] =
            Ref<Storage>::share(call.out[k].impl()->storage);
      }
      values_[id] = std::move(call.out[k]);
    }
    r_.each_operand(i, [&](uint32_t id, bool) {
      if (last_use_[id] == at) values_[id] = Tensor();
    });
  }

  const Recording& r_;
  const std::vector<Binding>& bindings_;
  const std::vector<int64_t>& control_;
  std::vector<Tensor> values_;
  std::vector<size_t> last_use_;
  size_t last_fallible_ = 0;
  std::vector<Ref<Storage>> survivors_;
  UndoLog undo_;
  Scope module_{nullptr, nullptr};
  const Scope* const outer_ = context.scope;
};

}  // namespace

std::vector<Ref<Storage>> walk(const Recording& r, const std::vector<Binding>& bindings,
                               const std::vector<int64_t>& control) {
  return Walk(r, bindings, control).run();
}

}  // namespace brrr::graph
