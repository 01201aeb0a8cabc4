#include "graph/walker.h"

#include <algorithm>
#include <bit>

#include "core/backend.h"
#include "core/check.h"
#include "graph/schedule.h"
#include "graph/numerics.h"

namespace brrr::graph {

void prepare_call(const Instr& i, const int64_t* control, OpCall& call) {
  call.into = i.into;
  call.attrs = i.attrs;
  int64_t word = i.control;
  for (uint16_t bits = i.attrs.dynamic; bits; bits &= static_cast<uint16_t>(bits - 1)) {
    call.attrs.v[std::countr_zero(bits)] = control[word++];
  }
}

void UndoLog::save(Storage& s) {
  for (const auto& [storage, copy] : saved_) {
    if (storage.get() == &s) return;
  }
  Tensor copy = raw_empty({static_cast<int64_t>(s.bytes)}, kUInt8, s.device);
  backend(s.device.type).copy(copy.impl()->data(), s.data, s.bytes);
  s.refs.retain();
  saved_.emplace_back(Ref<Storage>::adopt(&s), std::move(copy));
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
       const std::vector<int64_t>& control, WalkOptions options)
      : r_(r),
        bindings_(bindings),
        control_(control),
        options_(options),
        values_(r.values.size()),
        last_use_(r.values.size(), 0),
        survivors_(r.survivors.size()) {
    for (size_t at = 0; at < r.instrs.size(); ++at) {
      const Instr& i = r.instrs[at];
      for (int k = 0; k < i.n_in; ++k) {
        if (r.in(i)[k] != kNone) last_use_[r.in(i)[k]] = at;
      }
      for (int k = 0; k < i.n_out; ++k) last_use_[r.out(i)[k]] = at;
      const bool allocates = !i.op->is_view() && (!i.into || takes_memory(r, i));
      if (allocates || can_fail(r, i) || options.check_numerics) last_fallible_ = at;
    }
  }

  std::vector<Ref<Storage>> run() {
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
      b.storage->refs.retain();
      values_[id] = Tensor(Ref<TensorImpl>::adopt(
          new_impl(b.storage.get(), v.dtype, v.size_list(), v.stride_list(), v.offset + b.base)));
    }
    return values_[id].impl();
  }

  void step(size_t at) {
    const Instr& i = r_.instrs[at];
    std::vector<TensorImpl*> in(i.n_in);
    for (int k = 0; k < i.n_in; ++k) in[static_cast<size_t>(k)] = value(r_.in(i)[k]);
    OpCall call(*i.op, in.data(), i.n_in, i.n_out);
    prepare_call(i, control_.data(), call);
    for (int k = 0; i.into && k < i.n_out; ++k) {
      TensorImpl* t = value(r_.out(i)[k]);
      call.out[k] = Tensor(Ref<TensorImpl>::share(t));
      const StorageInfo& info = r_.storages[r_.values[r_.out(i)[k]].storage];
      if (info.origin == Origin::External && at <= last_fallible_) {
        undo_.save(*t->storage);
      }
    }
    call.infer();
    execute(call);
    if (options_.check_numerics) {
      check_finite(
          call, [&] { return fmt::format("instruction {}, {}{}", at, r_.describe(i), near(at)); });
    }
    for (int k = 0; !i.into && k < i.n_out; ++k) {
      const uint32_t id = r_.out(i)[k];
      const uint32_t storage = r_.values[id].storage;
      const auto slot = std::lower_bound(r_.survivors.begin(), r_.survivors.end(), storage);
      if (slot != r_.survivors.end() && *slot == storage && r_.storages[storage].maker == at) {
        Storage* s = call.out[k].impl()->storage;
        s->refs.retain();
        survivors_[static_cast<size_t>(slot - r_.survivors.begin())] = Ref<Storage>::adopt(s);
      }
      values_[id] = std::move(call.out[k]);
    }
    for (uint32_t k = i.first_in; k < i.first_out + i.n_out; ++k) {
      const uint32_t id = r_.operands[k];
      if (id != kNone && last_use_[id] == at) values_[id] = Tensor();
    }
  }

  // Backward's ops have no module: the last one that touched an operand of theirs is named.
  std::string near(size_t at) const {
    const Instr& i = r_.instrs[at];
    if (!r_.paths[i.path].empty()) return "";
    auto uses = [&](uint32_t storage) {
      return std::any_of(r_.in(i), r_.in(i) + i.n_in, [&](uint32_t id) {
        return id != kNone && r_.values[id].storage == storage;
      });
    };
    for (size_t before = at; before-- > 0;) {
      const Instr& b = r_.instrs[before];
      if (r_.paths[b.path].empty()) continue;
      for (uint32_t k = b.first_in; k < b.first_out + b.n_out; ++k) {
        const uint32_t id = r_.operands[k];
        if (id != kNone && uses(r_.values[id].storage)) return ", near " + r_.paths[b.path];
      }
    }
    return "";
  }

  const Recording& r_;
  const std::vector<Binding>& bindings_;
  const std::vector<int64_t>& control_;
  WalkOptions options_;
  std::vector<Tensor> values_;
  std::vector<size_t> last_use_;
  size_t last_fallible_ = 0;
  std::vector<Ref<Storage>> survivors_;
  UndoLog undo_;
};

}  // namespace

std::vector<Ref<Storage>> walk(const Recording& r, const std::vector<Binding>& bindings,
                               const std::vector<int64_t>& control, WalkOptions options) {
  return Walk(r, bindings, control, options).run();
}

}  // namespace brrr::graph
