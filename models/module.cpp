#include "models/module.h"

#include <algorithm>
#include <array>

#include "core/check.h"
#include "core/context.h"
#include "models/optim.h"
#include "models/sharding.h"
#include "ops/pointwise_ops.h"

namespace brrr::models {

namespace {

// Replaces a tensor's storage in place, so that all handles see it. Increments the version, so that
// a tape that saved the old values throws instead of using the new ones.
void replace_data(const Tensor& t, const Tensor& with) {
  TensorImpl& to = *sole_view(t).impl();  // If t was a view, it is none of the new storage.
  const TensorImpl& from = *with.impl();
  from.storage->version = to.storage->version + 1;
  from.storage->refs.retain();
  Storage* old = std::exchange(to.storage, from.storage);
  to.dtype = from.dtype;
  to.device = from.device;
  to.offset = from.offset;
  to.flags = static_cast<uint8_t>((to.flags & kRequiresGrad) | (from.flags & ~kRequiresGrad));
  std::copy_n(from.strides, from.ndim, to.strides);
  if (old->refs.release()) destroy(old);
}

}  // namespace

Tensor Module::forward(const Tensor&) {
  fail(
      "forward: the module \"{}\" has no forward of one tensor; override it or call its own "
      "members",
      name_);
}

Tensor Module::operator()(const Tensor& x) {
  if (name_.empty()) return forward(x);
  Scope scope{&name_, context.scope};
  const Held inside(context.scope, &scope);
  return forward(x);
}

void Module::check_name(const char* what, const std::string& name) const {
  BRRR_CHECK(!name.empty() && name.find('.') == std::string::npos,
             "{}: \"{}\" is not a valid name; give one that is not empty and has no dots", what,
             name);
  bool taken = false;
  for (const Entry& e : entries_) taken |= e.name == name;
  for (const auto& [child, module] : children_) taken |= child == name;
  BRRR_CHECK(!taken, "{}: \"{}\" is registered already; give each part a name of its own", what,
             name);
}

void Module::register_module(const std::string& name, Module& child) {
  check_name("register_module", name);
  bool cycle = &child == this;
  child.visit("", [&](const std::string&, const Module& m, const Entry*) { cycle |= &m == this; });
  BRRR_CHECK(!cycle, "register_module: \"{}\" contains the module it is to become a part of", name);
  children_.emplace_back(name, &child);
  child.name_ = name;
}

Tensor Module::register_parameter(const std::string& name, const Tensor& t) {
  check_name("register_parameter", name);
  BRRR_CHECK(t.defined(), "register_parameter: \"{}\" is undefined", name);
  t.set_requires_grad(true);
  entries_.push_back({name, t, false});
  return t;
}

Tensor Module::register_buffer(const std::string& name, const Tensor& t) {
  check_name("register_buffer", name);
  BRRR_CHECK(t.defined() && !t.requires_grad(),
             "register_buffer: \"{}\" must be a tensor that does not require grad", name);
  entries_.push_back({name, t, true});
  return t;
}

// Calls f(path, module, null) for each module and f(path, module, entry) for each of its tensors.
template <class F> void Module::visit(const std::string& path, const F& f) const {
  f(path, *this, nullptr);
  for (const Entry& e : entries_) f(path + e.name, *this, &e);
  for (const auto& [name, child] : children_) child->visit(path + name + ".", f);
}

// The tensors for which f(entry) holds.
template <class F> std::vector<NamedTensor> Module::tensors(const F& f) const {
  std::vector<NamedTensor> all;
  visit("", [&](const std::string& path, const Module&, const Entry* e) {
    if (e && f(*e)) all.emplace_back(path, e->tensor);
  });
  return all;
}

std::vector<NamedTensor> Module::named_parameters() const {
  AddressSet seen;  // A tied parameter counts once.
  return tensors([&](const Entry& e) { return !e.buffer && seen.insert(e.tensor.impl()); });
}

// Called in every step, so it builds no names.
std::vector<Tensor> Module::parameters() const {
  std::vector<Tensor> all;
  AddressSet seen;
  add_parameters(all, seen);
  return all;
}

void Module::add_parameters(std::vector<Tensor>& to, AddressSet& seen) const {
  for (const Entry& e : entries_) {
    if (!e.buffer && seen.insert(e.tensor.impl())) to.push_back(e.tensor);
  }
  for (const auto& [name, child] : children_) child->add_parameters(to, seen);
}

std::vector<NamedTensor> Module::named_buffers() const {
  return tensors([](const Entry& e) { return e.buffer; });
}

std::vector<NamedTensor> Module::state() const {
  return tensors([](const Entry&) { return true; });
}

int64_t Module::num_parameters() const {
  int64_t n = 0;
  for (const Tensor& t : parameters()) n += t.numel();
  return n;
}

void Module::zero_grad() const {
  const std::vector<Tensor> all = parameters();
  dist::Sharding::forget_gradients(all);
  for (const Tensor& t : all) t.set_grad({});
}

void Module::train(bool on) {
  if (is_training() != on) {
    bump_settings_epoch();
    set_control(*training_, on);
  }
  for (auto& [name, child] : children_) child->train(on);
}

// Makes all conversions before it changes the first tensor, so that running out of memory does not
// leave a half-converted model.
template <class F> void Module::convert(const char* what, const F& f) const {
  check_host_access(what, nullptr);
  NoGradGuard guard;
  std::vector<std::array<Tensor, 3>> work;  // Each tensor, its new data and gradient.
  AddressSet seen;
  for (const auto& [name, t] : state()) {
    if (!seen.insert(t.impl())) continue;
    Tensor data = f(t.detach());
    if (data.dtype() == t.dtype() && data.device() == t.device()) continue;
    work.push_back({t, data, t.grad().defined() ? f(t.grad()) : Tensor()});
  }
  if (!work.empty()) bump_settings_epoch();
  for (const auto& [target, data, grad] : work) {
    target.set_grad({});
    replace_data(target, data);
    target.set_grad(grad);
  }
}

void Module::to(Device device) {
  convert("Module::to", [&](const Tensor& t) { return t.to(device); });
}

void Module::to(DType dtype) {
  BRRR_CHECK(is_floating(dtype), "Module::to: parameters are floating, not {}", brrr::name(dtype));
  convert("Module::to", [&](const Tensor& t) { return is_floating(t.dtype()) ? t.to(dtype) : t; });
}

StateDict Module::state_dict() const { return detached(state()); }

void Module::check_state_dict(const StateDict& dict, bool strict) const {
  check_state("load_state_dict", state(), dict, strict);
}

void Module::load_state_dict(const StateDict& dict, bool strict) const {
  check_state_dict(dict, strict);
  copy_state(state(), dict);
}

// --- non-finite values ---------------------------------------------------------------------------

std::string first_nonfinite(const std::vector<NamedTensor>& tensors) {
  NoGradGuard guard;
  for (const auto& [name, t] : tensors) {
    if (!t.defined() || !is_floating(t.dtype())) continue;
    const Tensor finite = isfinite(t);
    if (finite.all().item<bool>()) continue;
    const auto bad = t.numel() - finite.to(kInt64).sum().item<int64_t>();
    return fmt::format("{}, {}: {} of {} elements {} not finite", name, describe(t), bad, t.numel(),
                       bad == 1 ? "is" : "are");
  }
  return "";
}

std::string first_nonfinite(const Module& module) {
  std::vector<NamedTensor> all;
  for (const auto& [name, p] : module.named_parameters()) {
    all.emplace_back(name, p);
    for (const Tensor& g : optim::distinct_gradients({p})) all.emplace_back(name + ".grad", g);
  }
  for (const auto& buffer : module.named_buffers()) all.push_back(buffer);
  return first_nonfinite(all);
}

}  // namespace brrr::models
