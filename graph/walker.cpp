#include "graph/walker.h"

#include <algorithm>

#include "core/backend.h"
#include "core/context.h"
#include "graph/schedule.h"

namespace brrr::graph {

void UndoLog::save(Storage& s, bool aside) {
  if (std::ranges::any_of(saved_, [&](const Saved& x) { return x.of.get() == &s; })) return;
  Saved x{Ref<Storage>::share(&s), {}};
  if (aside && s.device != kCPU) {
    x.on_host = std::make_unique_for_overwrite<char[]>(s.bytes);
    backend(s.device.type).copy_to_host(x.on_host.get(), s.data, s.bytes);
  } else {
    x.copy = clone_storage(s);
  }
  saved_.push_back(std::move(x));
}

void UndoLog::restore() noexcept {
  for (const Saved& x : saved_) {
    const Storage& s = *x.of;
    const Backend& b = backend(s.device.type);
    x.copy ? b.copy(s.data, x.copy->data, s.bytes)
           : b.copy_from_host(s.data, x.on_host.get(), s.bytes);
  }
}

namespace {

class Walk : NotCopied {
 public:
  Walk(const Recording& r, const std::vector<Binding>& bindings,
       const std::vector<int64_t>& control, bool aside)
      : r_(r),
        bindings_(bindings),
        control_(control),
        aside_(aside),
        storages_(r.storages.size()),
        last_use_(r.storages.size()) {
    for (size_t k = 0; k < bindings.size(); ++k) storages_[r.externals[k]] = bindings[k].storage;
    for (size_t at = 0; at < r.instrs.size(); ++at) {
      const Instr& i = r.instrs[at];
      r.each_operand(i, [&](uint32_t id, bool) { last_use_[r.value(id).storage] = at; });
      const bool takes_memory = !i.op->is_view() && (!i.into || allocates(r, i));
      if (takes_memory || can_fail(r, i) || context.observer) last_fallible_ = at;
    }
    for (uint32_t st : r.survivors) last_use_[st] = r.instrs.size();
  }

  ~Walk() { context.scope = outer_; }

  std::vector<Ref<Storage>> run() {
    context.scope = &module_;
    try {
      for (size_t at = 0; at < r_.instrs.size(); ++at) step(at);
    } catch (...) {
      undo_.restore();
      throw;
    }
    std::vector<Ref<Storage>> survivors;
    for (uint32_t st : r_.survivors) survivors.push_back(std::move(storages_[st]));
    return survivors;
  }

 private:
  void step(size_t at) {
    const Instr& i = r_.instrs[at];
    context.running = i.op;
    r_.each_operand(i, [&](uint32_t id, bool write) {
      const StorageInfo& info = r_.storages[r_.value(id).storage];
      Ref<Storage>& s = storages_[r_.value(id).storage];
      if (info.origin == Origin::External) {
        if (i.into && write && at <= last_fallible_) undo_.save(*s, aside_);
      } else if (info.maker == at) {
        s = Ref<Storage>::adopt(new_storage(info.device, info.bytes));
        allocate(*s);
      }
    });
    const auto made = make_call(r_, i, storages_);
    auto tensor = made->keep.begin();
    r_.each_operand(i, [&](uint32_t id, bool) {
      const StorageInfo& info = r_.storages[r_.value(id).storage];
      if (info.origin == Origin::External) tensor->impl()->offset += bindings_[info.maker].base;
      ++tensor;
    });
    for (const auto& [word, from] : made->dynamic) made->call.attrs.v[word] = control_[from];
    module_.name = &r_.paths[i.path];
    execute(made->call);
    r_.each_operand(i, [&](uint32_t id, bool) {
      if (last_use_[r_.value(id).storage] == at) storages_[r_.value(id).storage].reset();
    });
  }

  const Recording& r_;
  const std::vector<Binding>& bindings_;
  const std::vector<int64_t>& control_;
  const bool aside_;
  Storages storages_;
  std::vector<size_t> last_use_;
  size_t last_fallible_ = 0;
  UndoLog undo_;
  Scope module_{nullptr, nullptr};
  const Scope* const outer_ = context.scope;
};

}  // namespace

std::vector<Ref<Storage>> walk(const Recording& r, const std::vector<Binding>& bindings,
                               const std::vector<int64_t>& control, bool aside) {
  const Held products(context.tf32, r.tf32);
  return Walk(r, bindings, control, aside).run();
}

}  // namespace brrr::graph
