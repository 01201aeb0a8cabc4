#pragma once
// The text of a pass over the elements of a row: what it loads, computes, folds and stores.

#include "ops/program/cpu_row_totals.h"

namespace brrr::program {

class RowBodies : public RowTotals {
 public:
  using RowTotals::RowTotals;

 protected:
  std::string line(int id, int u, bool tail) override;
  std::string from_memory(int id, const std::string& x) const;
  std::string to_memory(int id, const std::string& x) const;

  /// Pointers and numbers that the pass reads in row r.
  void row_names(const Pass& pass, const std::string& indent);
  /// Numbers that are elements, each computed where it is.
  void picks(const Pass& pass);
  /// The pass's folds, but for those.
  std::vector<int> folds(const Pass& pass) const;

  /// A fold of one row, or of a chunk of it: four accumulators, a body that adds a vector to each,
  /// what is left behind whole bodies, and the number that comes of them.
  void accumulators(const std::vector<int>& folds, const std::string& indent);
  void fold_body(const std::vector<int>& list, const std::vector<int>& folds,
                 const std::string& indent);
  void rest(const std::vector<int>& list, const std::vector<int>& folds, int64_t chunks,
            const std::string& indent);
  void reduced(const std::vector<int>& folds, const std::string& to, const std::string& indent);

  int current_ = 0;  // The pass that is printed.

 private:
  void pick(int id);
  void picked(int id, std::vector<int>& list) const;
  void take(const std::vector<int>& folds, int u, int to, bool tail, const std::string& indent);
};

}  // namespace brrr::program
