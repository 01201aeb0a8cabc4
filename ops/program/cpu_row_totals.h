#pragma once
// What is left of rows when all of them are done: sums over the rows and of whole tensors, which
// every thread leaves in the kernel's own memory and a second launch brings together.

#include "ops/program/cpu_row_passes.h"

namespace brrr::program {

class RowTotals : public RowPasses {
 public:
  using RowPasses::RowPasses;

 protected:
  /// Columns' sums of each block of rows, then a number of each row for each total.
  void plan_scratch();
  /// Pointers, and numbers that are the same for all rows.
  void begin();
  /// Before a block of rows.
  void clear_columns();
  /// A formula of the operands' `u`-th vectors.
  std::string line_value(int id, int u) const;
  /// The second launch.
  void finish();

 private:
  void finish_columns(const std::vector<int>& places);

  std::vector<std::pair<int, int64_t>> scratch_of_;  // Statements and places in scratch memory.
};

}  // namespace brrr::program
