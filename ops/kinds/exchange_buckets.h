#pragma once
// Gradients that are summed over the ranks in buckets, each by one job that begins when the last of
// its members is ready.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/tensor.h"
#include "ops/kinds/exchange.h"

namespace brrr::dist {

struct GradientBucket;
struct BucketUses;

/// Which part of each member belongs to which rank (empty: all share the work), and which halves of
/// a sum run: gradients that only their owners need are not shared, parameters not summed.
struct Division {
  std::vector<Cuts> cuts = {};
  Halves halves = Halves::Both;
  std::vector<std::string> names = {};  ///< Of the members, in messages of end()'s comparison.
};

/// The buckets of one model. begin() and end() are ops on a gradient, in place: a recorded step has
/// them where backward computes the gradient and where the update needs it.
class Buckets : NotCopied {
 public:
  /// `members`: tensors like the gradients to come, in backward's order. Every rank but the first
  /// gives the gradients of `passes` passes, to be summed in their order.
  Buckets(const std::vector<Tensor>& members, int64_t bucket_bytes, int passes,
          const Division& division = {});
  ~Buckets();
  /// Gradient k is ready in `g`, dense; `before` are those of earlier passes. The last gradient of
  /// its bucket starts the sum.
  void begin(const Tensor& g, size_t k, const std::vector<Tensor>& before) const;
  /// Leaves the sum over the ranks in each gradient of `members` (ascending), all of which have
  /// begun. No rank gives the other members of their buckets. `before(k)`: what begin() was given.
  /// `used`, unless empty, says for every member whether it has a gradient, and last the number of
  /// steps since the last sums: throws brrr::Error on all ranks unless theirs are the same.
  void end(const std::vector<Tensor>& gradients, const std::vector<size_t>& members,
           const std::function<std::vector<Tensor>(size_t)>& before,
           const std::vector<uint8_t>& used = {}) const;
  /// Discards what a pass that threw has begun, once its gradients are no longer read or written.
  void clear() const noexcept;
  size_t bucket_of(size_t k) const { return place_[k].first; }
  size_t members_of(size_t bucket) const;
  size_t size() const { return buckets_.size(); }

 private:
  int own_rows_;                                  // This rank's rows per gradient.
  std::vector<std::pair<size_t, size_t>> place_;  // Bucket and index in it.
  std::vector<std::unique_ptr<GradientBucket>> buckets_;
  std::shared_ptr<BucketUses> uses_;
};

}  // namespace brrr::dist
