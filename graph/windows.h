#pragma once
// What a fused group reads and writes, as windows over its iteration space.

#include <map>
#include <vector>

#include "graph/schedule.h"

namespace brrr::graph {

struct Window {
  uint32_t value;            ///< The first operand that named it.
  int64_t stride[kMaxDims];  ///< Over the space's dims, in elements.
  bool loaded = false;       ///< Read before anything in the group has written it.
  bool stored = false;       ///< Written, and wanted outside the group.
  bool touched() const { return loaded || stored; }
};

/// One window for values that are the same elements walked alike: x and x.view({n, 1}) are not.
/// Dims that all of them walk alike are merged, dims of size 1 vanish.
class Windows {
 public:
  Windows(const Recording& r, const Group& g, const Schedule& s);
  size_t of(uint32_t value) const { return by_value_.at(value); }
  std::vector<Window> all;
  int ndim = 0;  ///< At least one.
  int64_t size[kMaxDims];

 private:
  size_t add(uint32_t id);
  void find();
  void collapse();

  const Recording& r_;
  const Group& g_;
  const Schedule& s_;
  std::map<uint32_t, size_t> by_value_;
};

/// The dtype that a pointwise instruction computes in.
DType compute_dtype(const Recording& r, const Instr& i);

}  // namespace brrr::graph
