#pragma once
// What the walk over rows (cpu_rows.cpp) is made of: a pass for each depth of folds, values that
// later passes load instead of computing them again, the text of a pass over the elements of a row
// (cpu_row_text.cpp); and what is left when all rows are done: sums over the rows and of whole
// tensors, which every thread leaves in the kernel's own memory and a second launch brings together
// (cpu_row_totals.cpp).

#include <algorithm>

#include "ops/program/cpu_text.h"

namespace brrr::program {

class RowText : public CpuText {
 public:
  explicit RowText(const Program& p);

 protected:
  RowState& of(int id) { return states_[static_cast<size_t>(id)]; }
  const RowState& of(int id) const { return states_[static_cast<size_t>(id)]; }
  /// The statements that a result depends on.
  std::vector<int> live() const;

  bool in_row(int id) const { return at(id).varies == Statement::InRow; }
  bool is_fold(int id) const { return ends_pass(at(id)); }
  bool is_element_store(int id) const {
    return at(id).kind == Statement::Store && !of(id).after && inner_stride(at(id)) != 0;
  }
  /// Of how many blocks a value that is kept is there at a time.
  int64_t blocks_kept(int id) const { return pipelined_ ? deepest_ - of(id).pass + 1 : 1; }

  /// Columns' sums of each block of rows, then a number of each row for each total.
  void plan_scratch();
  /// Pointers, and numbers that are the same for all rows.
  void begin();
  /// Before a block of rows.
  void clear_columns();
  /// The second launch.
  void finish();

  std::string line(int id, int u, bool tail) override;
  template <class T> static void distinct(std::vector<T>& list) {
    std::sort(list.begin(), list.end());
    list.erase(std::unique(list.begin(), list.end()), list.end());
  }
  std::string from_memory(int id, const std::string& x) const;
  std::string to_memory(int id, const std::string& x) const;
  /// Pointers and numbers that the pass reads in row r.
  void row_names(const RowPass& pass);
  /// A number that is an element, computed where it is.
  void pick(int id);
  /// Of a fold of one row, or of a chunk of it: a body that adds a vector to each accumulator, what
  /// is left behind whole bodies, and the number that comes of them.
  void fold_body(const std::vector<int>& list, const std::vector<int>& folds);
  void rest(const std::vector<int>& list, const std::vector<int>& folds, int64_t chunks);
  void reduced(const std::vector<int>& folds, const std::string& to);

  const int64_t n_, rows_;
  const int64_t block_;   // Rows that a pass takes before the next begins.
  const int64_t padded_;  // The length of a row in the kernel's own memory.
  int deepest_ = 0;
  bool pipelined_ = false;  // Passes run side by side, each a block behind the one before.
  std::vector<int> columns_, totals_;
  std::vector<RowPass> passes_;
  int current_ = 0;  // The pass that is printed.

 private:
  void weigh(int id, std::vector<bool>& seen, int& loads, int& cost) const;
  int64_t bytes_kept(int id) const {
    return blocks_kept(id) * block_ * padded_ * static_cast<int64_t>(itemsize(at(id).type));
  }
  bool is_worth_keeping(int id);
  bool loads(int id, int d);
  void finish_columns(const std::vector<int>& places);
  void picked(int id, std::vector<int>& list) const;

  std::vector<RowState> states_;
  int64_t kept_bytes_ = 0;
  std::vector<std::pair<int, int64_t>> scratch_of_;  // Statements and places in scratch memory.
};

}  // namespace brrr::program
