#pragma once
// Gradients on their way: buckets of them, each summed over the ranks by one job that begins when
// the last of its members is there.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/tensor.h"
#include "ops/kinds/exchange.h"

namespace brrr::dist {

struct GradientBucket;
struct BucketUses;

/// Which part of each member belongs to which rank (empty: all share the work), and what of a sum
/// takes place: gradients that only their owners need are not shared, parameters are not summed.
struct Division {
  std::vector<Cuts> cuts = {};
  Halves halves = Halves::Both;
  std::vector<std::string> names = {};  ///< Of the members, in messages of end()'s comparison.
};

/// The buckets of one model. begin() and end() are operations on a gradient, in place: a recorded
/// step has them where backward makes it and where the update needs it.
class Buckets : NotCopied {
 public:
  /// Tensors like the gradients to come, in the order in which backward makes them. With `passes`
  /// ranks but the first give the gradients of each of so many passes, to be summed in their order.
  Buckets(const std::vector<Tensor>& members, int64_t bucket_bytes, int passes,
          const Division& division = {});
  ~Buckets();
  /// Gradient k is there, in `g`, dense; `before` are those of earlier passes. With the last of
  /// its bucket the sum begins.
  void begin(const Tensor& g, size_t k, const std::vector<Tensor>& before) const;
  /// Of the members (rising) that have begun: after this each gradient is the sum over the ranks.
  /// Nobody gives the others of their buckets. `before(k)` is what begin() was given. With `used`,
  /// of every member whether it came and then how many steps were taken since the last sums, throws
  /// brrr::Error on all ranks unless theirs are the same.
  void end(const std::vector<Tensor>& gradients, const std::vector<size_t>& members,
           const std::function<std::vector<Tensor>(size_t)>& before,
           const std::vector<uint8_t>& used = {}) const;
  /// Forgets what a pass has begun that threw, once nobody reads or writes its gradients any more.
  void clear() const noexcept;
  size_t bucket_of(size_t k) const { return place_[k].first; }
  size_t members_of(size_t bucket) const;
  size_t size() const { return buckets_.size(); }

 private:
  int own_rows_;                                  // Of this rank, a gradient.
  std::vector<std::pair<size_t, size_t>> place_;  // Bucket and place in it.
  std::vector<std::unique_ptr<GradientBucket>> buckets_;
  std::shared_ptr<BucketUses> uses_;
};

}  // namespace brrr::dist
