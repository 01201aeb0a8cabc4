#include "models/sharding.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <mutex>
#include <numeric>
#include <sstream>

#include "core/check.h"
#include "core/context.h"
#include "core/tensor_impl.h"
#include "models/data_parallel.h"
#include "ops/dist.h"
#include "ops/dist_ops.h"
#include "ops/factory_ops.h"
#include "ops/library_ops.h"
#include "ops/pointwise_ops.h"
#include "ops/reduction_ops.h"
#include "ops/view_ops.h"

namespace brrr::dist {

namespace {

// Whose sharding an optimiser finds by its parameters.
struct Registry {
  std::mutex mutex;
  std::map<const TensorImpl*, std::weak_ptr<Sharding>> all;
};
Registry& registry() {
  static auto* const r = new Registry;
  return *r;
}

int64_t bytes_of(const Tensor& t) { return t.numel() * static_cast<int64_t>(itemsize(t.dtype())); }

// Of each parameter the elements of each rank. Those of more than a quarter of a rank's share are
// divided among all; of the rest the largest comes first, each to the rank with the least so far.
std::vector<Cuts> divide(const std::vector<Tensor>& parameters) {
  const auto ranks = static_cast<size_t>(size());
  std::vector<size_t> order(parameters.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return bytes_of(parameters[a]) > bytes_of(parameters[b]);
  });
  int64_t all = 0;
  for (const Tensor& p : parameters) all += bytes_of(p);
  std::vector<int64_t> bytes(ranks);
  std::vector<Cuts> cuts(parameters.size(), Cuts(ranks + 1));
  for (const size_t k : order) {
    const Tensor& p = parameters[k];
    const bool divided = bytes_of(p) * 4 * size() > all;
    const auto owner =
        static_cast<size_t>(std::min_element(bytes.begin(), bytes.end()) - bytes.begin());
    if (!divided) bytes[owner] += bytes_of(p);
    for (size_t r = 0; r <= ranks; ++r) {
      cuts[k][r] = divided ? Row::shard_begin(p.numel(), static_cast<int>(r), size())
                           : (r > owner ? p.numel() : 0);
    }
  }
  return cuts;
}

Tensor part_of(const Tensor& t, int64_t begin, int64_t end) {
  return t.view({-1}).narrow(0, begin, end - begin);
}
std::pair<int64_t, int64_t> range_of(const Cuts& cuts) {
  const auto r = static_cast<size_t>(rank());
  return {cuts[r], cuts[r + 1]};
}

// The dict of rank `root`, on every rank.
StateDict broadcast_state(const StateDict& own, int root) {
  std::string text;
  for (const auto& [name, t] : own) {
    text += fmt::format("{} {} {} {}\n", name, static_cast<int>(t.dtype()), t.dim(),
                        fmt::join(t.sizes(), " "));
  }
  std::istringstream lines(broadcast_text(text, root));
  StateDict all;
  std::string name;
  for (int dtype, dims; lines >> name >> dtype >> dims;) {
    std::vector<int64_t> sizes(static_cast<size_t>(dims));
    for (int64_t& n : sizes) lines >> n;
    const auto mine = own.find(name);
    const Tensor t = rank() == root
                         ? mine->second
                         : zeros(IntList(sizes.data(), dims), static_cast<DType>(dtype), kCPU);
    all[name] = broadcast(t.to(kCPU), root);
  }
  return all;
}

}  // namespace

// --- Sharding ------------------------------------------------------------------------------------

std::shared_ptr<Sharding> Sharding::make(const std::vector<Tensor>& parameters, bool gradients) {
  const std::shared_ptr<Sharding> s(new Sharding);
  s->parameters_ = parameters;
  s->gradients_ = gradients;
  std::vector<Cuts> cuts = divide(parameters);
  for (size_t k = 0; k < parameters.size(); ++k) {
    const Tensor& p = parameters[k];
    BRRR_CHECK(p.is_contiguous(), "DataParallel: a parameter, {}, is not dense", describe(p));
    Known known{.cuts = std::move(cuts[k])};
    const auto [begin, end] = range_of(known.cuts);
    if (begin < end) known.own = end - begin == p.numel() ? p : part_of(p.detach(), begin, end);
    // Of one that belongs to one rank the numbers are 0 or n.
    known.divided = std::any_of(known.cuts.begin(), known.cuts.end(),
                                [&](int64_t at) { return at > 0 && at < p.numel(); });
    if (known.divided && gradients) {
      const Division share{.cuts = {known.cuts}, .halves = Halves::Share};
      known.parts = std::make_unique<Buckets>(std::vector<Tensor>{p}, INT64_MAX, 1, share);
    }
    s->known_.emplace(p.impl(), std::move(known));
  }
  Registry& r = registry();
  const std::lock_guard lock(r.mutex);
  for (const Tensor& p : parameters) r.all[p.impl()] = s;
  return s;
}

Tensor Sharding::own_gradient(const Tensor& parameter) const {
  const Tensor& mine = own(parameter);
  if (!mine.defined()) return {};
  if (gradients_ || !divided(parameter)) return mine.grad();
  const Tensor g = parameter.grad();
  const auto [begin, end] = range_of(cuts(parameter));
  return g.defined() ? part_of(g.contiguous(), begin, end) : g;
}

void Sharding::keep_own_gradient(const Tensor& parameter) const {
  const Tensor& mine = own(parameter);
  if (mine.defined() && !divided(parameter)) return;
  const auto [begin, end] = range_of(cuts(parameter));
  if (mine.defined()) mine.set_grad(part_of(parameter.grad(), begin, end).clone());
  parameter.set_grad({});
}

Tensor norm_of(const Tensor& gradient) {
  return gradient.to(promote(gradient.dtype(), kFloat32)).norm();
}

Tensor Sharding::norm_of_parts(const Tensor& parameter) const {
  const Tensor mine = own_gradient(parameter);
  const Tensor none = zeros({}, promote(parameter.dtype(), kFloat32), parameter.device());
  if (!divided(parameter)) return mine.defined() ? norm_of(mine) : none;
  // Its sum has the bits of the whole one's only if it is taken of the whole.
  const auto [begin, end] = range_of(cuts(parameter));
  const Tensor whole = zeros(parameter.sizes(), parameter.dtype(), parameter.device());
  if (mine.defined()) part_of(whole, begin, end).copy_(mine);
  const Buckets& parts = *known(parameter).parts;
  parts.begin(whole, 0, {});
  parts.end({whole}, {0}, [](size_t) { return std::vector<Tensor>(); });
  return rank() == 0 ? norm_of(whole) : none;
}

std::shared_ptr<Sharding> Sharding::of(const std::vector<Tensor>& parameters) {
  Registry& r = registry();
  const std::lock_guard lock(r.mutex);
  if (r.all.empty()) return nullptr;
  std::shared_ptr<Sharding> found;
  for (size_t k = 0; k < parameters.size(); ++k) {
    const auto at = r.all.find(parameters[k].impl());
    const auto its = at == r.all.end() ? nullptr : at->second.lock();
    BRRR_CHECK(k == 0 || its == found,
               "parameters 0 and {} ({}) do not belong to the same DataParallel that shards the "
               "optimiser; make an optimiser for each",
               k, describe(parameters[k]));
    found = its;
  }
  return found;
}

Sharding::~Sharding() {
  Registry& r = registry();
  const std::lock_guard lock(r.mutex);
  for (const Tensor& p : parameters_) {
    const auto at = r.all.find(p.impl());
    if (at != r.all.end() && at->second.expired()) r.all.erase(at);
  }
}

// --- an optimiser's view -------------------------------------------------------------------------

std::unique_ptr<ParameterShares> ParameterShares::of(const std::vector<Tensor>& parameters) {
  auto sharding = Sharding::of(parameters);
  if (!sharding) return nullptr;
  return std::unique_ptr<ParameterShares>(new ParameterShares(std::move(sharding), parameters));
}

ParameterShares::ParameterShares(std::shared_ptr<Sharding> sharding,
                                 const std::vector<Tensor>& parameters)
    : sharding_(std::move(sharding)), parameters_(parameters) {
  Division division{.halves = Halves::Share};
  for (const Tensor& p : parameters) division.cuts.push_back(sharding_->cuts(p));
  values_ = std::make_unique<Buckets>(parameters_, INT64_MAX, 1, division);
}

ParameterShares::~ParameterShares() = default;

void ParameterShares::send() const {
  if (size() == 1) return;
  std::vector<size_t> changed;
  std::vector<Tensor> values;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const Tensor& p = parameters_[i];
    if (!(sharding_->gradients() ? sharding_->used(p) : p.grad().defined())) continue;
    changed.push_back(i);
    values.push_back(p);
    values_->begin(values.back(), i, {});
  }
  values_->end(values, changed, [](size_t) { return std::vector<Tensor>(); });
}

// "<i>.<name>" is state of parameter i; other names are of none.
const Tensor* ParameterShares::parameter_of(const std::string& name) const {
  size_t i = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), i);
  const bool fits = error == std::errc() && *end == '.' && i < parameters_.size();
  return fits ? &parameters_[i] : nullptr;
}

StateDict ParameterShares::gathered(const StateDict& own) const {
  BRRR_CHECK(!context.recorder, "an optimiser's state is gathered outside of the step");
  if (size() == 1) return own;
  std::map<std::string, std::vector<Tensor>> parts;
  for (int r = 0; r < size(); ++r) {
    const StateDict theirs = broadcast_state(own, r);
    if (rank() > 0) continue;
    for (const auto& [name, t] : theirs) parts[name].push_back(t);
  }
  if (rank() > 0) return own;
  StateDict all;
  for (const auto& [name, of_ranks] : parts) {
    const Tensor* const p = parameter_of(name);
    // Numbers, which have no dims, are alike.
    const bool whole = !p || !sharding_->divided(*p) || of_ranks[0].dim() == 0;
    all[name] = whole ? of_ranks[0] : cat(of_ranks, 0).view(p->sizes());
  }
  return all;
}

StateDict ParameterShares::own_part(const StateDict& dict) const {
  StateDict own;
  for (const auto& [name, t] : dict) {
    const Tensor* const p = parameter_of(name);
    if (p && !sharding_->own(*p).defined()) continue;
    const bool part = p && t.defined() && sharding_->divided(*p) && t.sizes() == p->sizes();
    const auto [begin, end] = p ? range_of(sharding_->cuts(*p)) : std::pair<int64_t, int64_t>();
    own[name] = part ? part_of(t.contiguous(), begin, end) : t;
  }
  return own;
}

Tensor over_ranks(const std::vector<Tensor>& parameters, const Tensor& own) {
  const auto sharding = Sharding::of(parameters);
  return sharding && sharding->gradients() && size() > 1 ? all_reduce(own) : own;
}

}  // namespace brrr::dist
