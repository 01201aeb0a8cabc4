#pragma once
// What a GPU's walk over rows computes when: a pass for each depth of folds; values of elements are
// computed anew in each.

#include "ops/program/cuda_rows.h"

namespace brrr::program {

class DeviceRowPasses {
 public:
  DeviceRowPasses(const Program& p, bool split);

  int count() const { return static_cast<int>(p_.statements.size()); }
  const Statement& at(int id) const { return p_.statements[static_cast<size_t>(id)]; }
  const RowState& of(int id) const { return states_[static_cast<size_t>(id)]; }
  const Window& window(int w) const { return p_.windows[static_cast<size_t>(w)]; }
  int64_t inner_stride(int w) const { return window(w).stride[p_.space.ndim - 1]; }
  bool is_element_store(int id) const {
    return at(id).kind == Statement::Store && !of(id).after && inner_stride(at(id).which) != 0;
  }
  const std::vector<int>& reused() const { return reused_; }

 protected:
  const Program& p_;
  std::vector<RowState> states_;
  int deepest_ = 0;
  std::vector<RowPass> passes_;
  std::vector<int> reused_;  ///< Windows that several passes read.
};

}  // namespace brrr::program
