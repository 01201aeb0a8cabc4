#pragma once
// What the walk over rows (cpu_rows.cpp) computes when: a pass for each depth of folds, values that
// later passes load instead of computing them again.

#include "ops/program/cpu_text.h"

namespace brrr::program {

class RowPasses : public CpuText {
 public:
  explicit RowPasses(const Program& p);

 protected:
  // What is done with all elements of a row, one after the other.
  struct Pass {
    std::vector<int> folds, list;  // Folds and picks that end it; statements of elements.
  };

  bool in_row(int id) const { return at(id).varies == Statement::InRow; }
  bool is_fold(int id) const { return ends_pass(at(id)); }
  bool is_over_rows(int id) const {
    return at(id).kind == Statement::Total || at(id).kind == Statement::FoldRows;
  }
  bool is_element_store(int id) const {
    return at(id).kind == Statement::Store && !of(id).after &&
           inner_stride(static_cast<size_t>(at(id).which)) != 0;
  }
  /// Of how many blocks a value that is kept is there at a time.
  int64_t blocks_kept(int id) const { return pipelined_ ? deepest_ - of(id).pass + 1 : 1; }
  /// Fills `passes_`.
  void plan_passes();

  struct State : RowState {
    bool kept = false;  ///< Its first pass leaves it for later ones.
    int pass = -1;      ///< The pass that computes it first.
  };
  State& of(int id) { return states_[static_cast<size_t>(id)]; }
  const State& of(int id) const { return states_[static_cast<size_t>(id)]; }

  const int64_t n_, rows_;
  const int64_t block_;   // Rows that a pass takes before the next begins.
  const int64_t padded_;  // The length of a row in the kernel's own memory.
  int deepest_ = 0;
  bool pipelined_ = false;  // Passes run side by side, each a block behind the one before.
  std::vector<int> columns_, totals_;
  std::vector<Pass> passes_;

 private:
  void sort_out();
  void weigh(int id, std::vector<bool>& seen, int& loads, int& cost) const;
  int64_t bytes_kept(int id) const {
    return blocks_kept(id) * block_ * padded_ * static_cast<int64_t>(itemsize(at(id).type));
  }
  bool is_worth_keeping(int id);
  void need(int id, int d, std::vector<bool>& in);

  std::vector<State> states_;
  int64_t kept_bytes_ = 0;
};

}  // namespace brrr::program
