#pragma once
// A row op as a program: its statements, and the text of its kernels for a GPU.

#include <string>
#include <vector>

#include "core/device_kernel.h"
#include "ops/kinds/row.h"

namespace brrr::program {

struct RowProgram {
  Statements statements;
  std::vector<int> results;  ///< Places of the results.
};
/// Statements are of float32 or float64, whichever T's arithmetic is.
RowProgram row_program(const RowInfo& info);

/// What all kernels of row ops take.
BRRR_DEVICE_STRUCT(RowArguments, {
  const char* in[12];
  char* out[4];
  char* totals[4];
  double scalar[12];
  long ignored[12];
  long rows;
  long n;
  char* fault;
  long op;
});
static_assert(kMaxRowOperands == 12 && kMaxOutputs == 4);

/// Texts of the kernels <op>_rows, <op>_columns and <op>_numbers; empty where there is nothing for
/// one to do. Elements are of type T, what the rows share of type U; kFlags has bit k where operand
/// k, shared by the rows, is there.
struct CudaRows {
  std::string rows;     ///< Results of elements and of rows, and what each row adds to a total.
  std::string columns;  ///< Sums over blocks of kReduceBlock rows: totals[k][block][n].
  std::string numbers;  ///< Results that are one number.
  bool served = true;   ///< False: a sum of columns needs a fold; the op is taken apart instead.
};
CudaRows cuda_rows(const RowInfo& info, const std::string& op);

}  // namespace brrr::program
