#include "models/sharding.h"

#include <algorithm>
#include <functional>
#include <map>
#include <mutex>
#include <numeric>

#include "core/check.h"
#include "core/context.h"
#include "core/tensor_impl.h"
#include "models/data_parallel.h"
#include "ops/dist.h"
#include "ops/dist_ops.h"
#include "ops/factory_ops.h"
#include "ops/kinds/reduction.h"
#include "ops/library_ops.h"
#include "ops/pointwise_ops.h"

namespace brrr::dist {

namespace {

// Maps parameters to their shardings, for optimisers.
struct Registry {
  // Recursive: of() may hold the last reference to a Sharding, whose destructor locks again.
  std::recursive_mutex mutex;
  std::map<const TensorImpl*, std::vector<std::weak_ptr<Sharding>>> all;  // The last counts.

  std::shared_ptr<Sharding> of(const Tensor& parameter) const {
    const auto at = all.find(parameter.impl());
    if (at == all.end()) return nullptr;
    for (auto its = at->second.rbegin(); its != at->second.rend(); ++its) {
      if (auto alive = its->lock()) return alive;
    }
    return nullptr;
  }
};
Registry& registry() {
  static auto* const r = new Registry;
  return *r;
}

int64_t item(const Tensor& t) { return static_cast<int64_t>(itemsize(t.dtype())); }
int64_t bytes_of(const Tensor& t) { return t.numel() * item(t); }

// Whether a gradient's norm can be computed from its chunks' sums of squares.
bool in_chunks(const Tensor& p) { return p.device() == kCPU && p.numel() > kReduceChunk; }

// Assigns elements to ranks. Parameters larger than a quarter of a rank's share are divided among
// all ranks; the others, largest first, go to the rank with the fewest bytes so far. Parts of
// sharded gradients are whole chunks, so that sums of squares by chunk are those of the complete
// gradient. (Not on GPUs, which fold a row otherwise than its parts: see norms_of_parts.)
std::vector<Cuts> divide(const std::vector<NamedTensor>& parameters, bool gradients) {
  const auto ranks = static_cast<size_t>(size());
  std::vector<size_t> order(parameters.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto bytes_of_parameter = [&](size_t k) { return bytes_of(parameters[k].second); };
  std::ranges::stable_sort(order, std::greater<>(), bytes_of_parameter);
  int64_t all = 0;
  for (const auto& [name, p] : parameters) all += bytes_of(p);
  std::vector<int64_t> bytes(ranks);
  std::vector<Cuts> cuts(parameters.size(), Cuts(ranks + 1));
  for (const size_t k : order) {
    const Tensor& p = parameters[k].second;
    const bool divided = bytes_of(p) * 4 * size() > all;
    const size_t owner = std::ranges::min_element(bytes) - bytes.begin();
    const int64_t chunk = gradients && in_chunks(p) ? kReduceChunk : 1;
    for (size_t r = 0; r <= ranks; ++r) {
      const int64_t at =
          Row::shard_begin((p.numel() + chunk - 1) / chunk, static_cast<int>(r), size());
      cuts[k][r] = divided ? std::min(at * chunk, p.numel()) : (r > owner ? p.numel() : 0);
      if (r > 0) bytes[r - 1] += (cuts[k][r] - cuts[k][r - 1]) * item(p);
    }
  }
  return cuts;
}

std::pair<int64_t, int64_t> own_range(const Cuts& cuts) {
  const auto r = static_cast<size_t>(rank());
  return {cuts[r], cuts[r + 1]};
}

}  // namespace

std::shared_ptr<Sharding> Sharding::make(const std::vector<NamedTensor>& parameters,
                                         bool gradients) {
  const std::shared_ptr<Sharding> s(new Sharding);
  s->gradients_ = gradients && size() > 1;
  std::vector<Cuts> cuts = divide(parameters, s->gradients_);
  for (size_t k = 0; k < parameters.size(); ++k) {
    const auto& [name, p] = parameters[k];
    BRRR_CHECK(p.is_contiguous(), "DataParallel: parameter {}, {}, is not dense", name,
               describe(p));
    Entry entry{.cuts = std::move(cuts[k]), .name = name, .parameter = p, .original = p.detach()};
    const auto [begin, end] = own_range(entry.cuts);
    // The state of a parameter without elements belongs to rank 0, which saves the complete state.
    const bool whole = p.numel() > 0 ? end - begin == p.numel() : rank() == 0;
    // With sharded gradients a separate leaf holds the gradient, because p.grad() stays undefined.
    if (whole) entry.own = s->gradients_ ? p.detach() : p;
    if (begin < end && !whole) entry.own = p.detach().view({-1}).narrow(0, begin, end - begin);
    // All cuts of a parameter with a single owner are 0 or n.
    entry.divided =
        std::ranges::any_of(entry.cuts, [n = p.numel()](int64_t at) { return at > 0 && at < n; });
    if (entry.divided && s->gradients_ && !in_chunks(p)) {
      const Division share{.cuts = {entry.cuts}, .halves = Halves::Share};
      entry.norm_buckets = std::make_unique<Buckets>(std::vector<Tensor>{p}, INT64_MAX, 1, share);
    }
    s->entries_.emplace(p.impl(), std::move(entry));
  }
  Registry& r = registry();
  const std::lock_guard lock(r.mutex);
  for (const auto& [name, p] : parameters) r.all[p.impl()].push_back(s);
  return s;
}

void Sharding::check_in_place(const char* who, const Tensor& p) const {
  const Entry& k = entry(p);
  BRRR_CHECK(p.impl()->storage == k.original.impl()->storage && p.dtype() == k.original.dtype(),
             "{}: parameter {}, {}, no longer has the memory that was sharded; {}", who, k.name,
             describe(p), kRemedy);
}

void Sharding::check_exchanged(const char* who, const Tensor& p) const {
  BRRR_CHECK(!gradients_ || !p.grad().defined(),
             "{}: parameter {}, {}, has a gradient that no rank has exchanged (shard_gradients): "
             "call backward() through its DataParallel, which must outlive the training, or clear "
             "gradients set any other way, zeros of zero_grad(false) too, with zero_grad()",
             who, entry(p).name, describe(p));
}

void Sharding::set_used(const Tensor& parameter, bool is_used) const {
  if (used(parameter) != is_used) set_control(*entry(parameter).used, is_used ? 1 : 0);
}

Tensor Sharding::own_gradient(const Tensor& parameter) const {
  const Entry& k = entry(parameter);
  if (!k.own.defined()) return {};
  if (gradients_) return k.used->value != 0 ? k.own.grad() : Tensor();
  const Tensor g = parameter.grad();
  return g.defined() ? own_part(parameter, g) : g;
}

Tensor Sharding::own_part(const Tensor& parameter, const Tensor& t) const {
  const Entry& k = entry(parameter);
  if (!k.divided || t.sizes() != parameter.sizes()) return t;
  const auto [begin, end] = own_range(k.cuts);
  return t.contiguous().view({-1}).narrow(0, begin, end - begin);
}

Tensor Sharding::gathered(const Tensor& parameter, const Tensor& t) const {
  const Cuts& cuts = entry(parameter).cuts;
  std::vector<Tensor> parts;
  for (size_t r = 0; r + 1 < cuts.size(); ++r) {
    const int64_t n = cuts[r + 1] - cuts[r];
    // 0-d state is equal on all owners: take the first's.
    if (n == 0 || (t.dim() == 0 && !parts.empty())) continue;
    const bool mine = static_cast<int>(r) == rank();
    const IntList part = t.dim() == 0 ? IntList{} : IntList{n};
    const Tensor sent = mine ? t.to(kCPU).view(part) : zeros(part, t.dtype(), kCPU);
    parts.push_back(broadcast(sent, static_cast<int>(r)));
  }
  if (rank() > 0 || parts.empty()) return t;
  return t.dim() == 0 ? parts[0] : cat(parts, 0).view(parameter.sizes());
}

void Sharding::keep_own_gradient(const Tensor& parameter, double scale) const {
  const Entry& k = entry(parameter);
  const Tensor all = parameter.grad();
  if (k.own.defined()) {
    const Tensor g = k.divided ? own_part(parameter, all) * scale : all.mul_(scale);
    k.own.grad().defined() ? static_cast<void>(k.own.grad().add_(g)) : k.own.set_grad(g);
  }
  parameter.set_grad({});
}

void Sharding::forget_gradients(const std::vector<Tensor>& parameters) {
  gradients_dropped(parameters);
  Registry& r = registry();
  const std::lock_guard lock(r.mutex);
  for (size_t k = 0; k < parameters.size() && !r.all.empty(); ++k) {
    const auto its = r.of(parameters[k]);
    if (!its || !its->gradients_) continue;
    its->set_used(parameters[k], false);
    const Tensor& own = its->entry(parameters[k]).own;
    if (own.defined()) own.set_grad({});
  }
}

Tensor norm_of(const Tensor& gradient) {
  return gradient.to(promote(gradient.dtype(), kFloat32)).norm();
}

// This rank's term of the all-reduce in norms_of_parts(). For a parameter with one owner, or whose
// gradient is gathered: the norm on one rank, 0 on the others. Else: a sum of squares per chunk, 0
// for other ranks' chunks.
Tensor Sharding::sums_of_own(const Tensor& p) const {
  const Tensor mine = own_gradient(p);
  const DType t = promote(p.dtype(), kFloat32);
  const Tensor none = zeros({1}, t, p.device());
  if (entry(p).norm_buckets) {
    const Tensor whole = zeros(p.sizes(), p.dtype(), p.device());
    if (mine.defined()) own_part(p, whole).copy_(mine);
    entry(p).norm_buckets->begin(whole, 0, {});
    entry(p).norm_buckets->end({whole}, {0}, [](size_t) { return std::vector<Tensor>(); });
    return rank() == 0 ? norm_of(whole).view({1}) : none;
  }
  if (!entry(p).divided) return mine.defined() ? norm_of(mine).view({1}) : none;
  const Tensor sums = zeros({(p.numel() + kReduceChunk - 1) / kReduceChunk}, t, p.device());
  if (!mine.defined()) return sums;
  const Tensor g = mine.to(t);
  const int64_t first = own_range(entry(p).cuts).first / kReduceChunk, n = g.numel() / kReduceChunk,
                whole = n * kReduceChunk, rest = g.numel() - whole;
  if (n > 0) {
    const Tensor chunks = g.narrow(0, 0, whole).view({n, kReduceChunk});
    sums.narrow(0, first, n).copy_(chunks.square().sum({1}));
  }
  if (rest > 0) sums.select(0, first + n).copy_(g.narrow(0, whole, rest).square().sum());
  return sums;
}

std::vector<Tensor> Sharding::norms_of_parts(const std::vector<Tensor>& parameters) const {
  std::vector<Tensor> sums, norms;
  DType widest = kFloat32;
  for (const Tensor& p : parameters) {
    sums.push_back(sums_of_own(p));
    widest = promote(widest, sums.back().dtype());
  }
  for (Tensor& s : sums) s = s.to(widest);
  const Tensor all = all_reduce(cat(sums, 0));
  int64_t at = 0;
  for (size_t k = 0; k < parameters.size(); ++k) {
    const Tensor& p = parameters[k];
    const Tensor s = all.narrow(0, at, sums[k].numel()).to(promote(p.dtype(), kFloat32));
    at += s.numel();
    norms.push_back(entry(p).divided && !entry(p).norm_buckets ? s.sum().sqrt() : s.view({}));
  }
  return norms;
}

std::shared_ptr<Sharding> Sharding::of(const std::vector<Tensor>& parameters) {
  Registry& r = registry();
  const std::lock_guard lock(r.mutex);
  if (r.all.empty()) return nullptr;
  std::shared_ptr<Sharding> found;
  for (size_t k = 0; k < parameters.size(); ++k) {
    const auto its = r.of(parameters[k]);
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
  for (auto& [p, its] : r.all) std::erase_if(its, [](const auto& s) { return s.expired(); });
  std::erase_if(r.all, [](const auto& entry) { return entry.second.empty(); });
}

}  // namespace brrr::dist
