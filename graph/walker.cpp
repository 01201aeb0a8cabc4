#include "graph/walker.h"

#include <algorithm>
#include <exception>

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
  exceptions_ = std::uncaught_exceptions();
}

UndoLog::~UndoLog() {
  // First, since a pending reduction over ranks would write to the restored memory.
  if (context.gradients && std::uncaught_exceptions()) context.gradients->abandoned();
  if (saved_.empty() || std::uncaught_exceptions() == exceptions_) return;
  for (const Saved& x : saved_) {
    const Storage& s = *x.of;
    const Backend& b = backend(s.device.type);
    try {
      x.copy ? b.copy(s.data, x.copy->data, s.bytes)
             : b.copy_from_host(s.data, x.on_host.get(), s.bytes);
    } catch (const Error&) {
      // The device accepts no more work; the exception in flight reports it.
    }
  }
}

std::vector<Ref<Storage>> walk(const Recording& r, const std::vector<Binding>& bindings,
                               const std::vector<int64_t>& control, bool aside) {
  const Held products(context.tf32, r.tf32);
  Storages storages(r.storages.size());
  for (size_t k = 0; k < bindings.size(); ++k) storages[r.externals[k]] = bindings[k].storage;
  std::vector<size_t> last_use(r.storages.size());
  size_t last_fallible = 0;
  for (size_t at = 0; at < r.instrs.size(); ++at) {
    const Instr& i = r.instrs[at];
    r.each_operand(i, [&](uint32_t id, bool) { last_use[r.value(id).storage] = at; });
    const bool takes_memory = !i.op->is_view() && (!i.into || allocates(r, i));
    if (takes_memory || can_fail(r, i) || context.observer) last_fallible = at;
  }
  for (uint32_t st : r.survivors) last_use[st] = r.instrs.size();
  UndoLog undo;
  Scope module{nullptr, nullptr};
  const Held inside(context.scope, &module);
  for (size_t at = 0; at < r.instrs.size(); ++at) {
    const Instr& i = r.instrs[at];
    context.running = i.op;
    r.each_operand(i, [&](uint32_t id, bool write) {
      const StorageInfo& info = r.storages[r.value(id).storage];
      Ref<Storage>& s = storages[r.value(id).storage];
      if (info.origin == Origin::External) {
        if (i.into && write && at <= last_fallible) undo.save(*s, aside);
      } else if (info.maker == at) {
        s = Ref<Storage>::adopt(new_storage(info.device, info.bytes));
        allocate(*s);
      }
    });
    const auto made = make_call(r, i, storages);
    auto tensor = made->keep.begin();
    r.each_operand(i, [&](uint32_t id, bool) {
      const StorageInfo& info = r.storages[r.value(id).storage];
      if (info.origin == Origin::External) tensor->impl()->offset += bindings[info.maker].base;
      ++tensor;
    });
    for (const auto& [word, from] : made->dynamic) made->call.attrs.v[word] = control[from];
    module.name = &r.paths[i.path];
    execute(made->call);
    r.each_operand(i, [&](uint32_t id, bool) {
      if (last_use[r.value(id).storage] == at) storages[r.value(id).storage].reset();
    });
  }
  std::vector<Ref<Storage>> survivors;
  for (uint32_t st : r.survivors) survivors.push_back(std::move(storages[st]));
  return survivors;
}

}  // namespace brrr::graph
