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

/// What all kernels over rows take. Those of rows: a row is p.n elements, one after the other; or a
/// part of one of p.length elements, which has `chunks` of them and is `stride` elements behind the
/// one before it. Those of columns: matrices, `stride` elements behind each other, of p.rows rows,
/// `step` behind each other, which are `chunks` blocks.
BRRR_DEVICE_STRUCT(RowArguments, {
  const char* in[12];
  char* out[4];
  char* totals[4];
  double scalar[12];
  long ignored[12];
  long rows;
  long n;
  long chunks;
  long length;
  long stride;
  long step;
  long matrices;
  char* fault;
  long op;
});
static_assert(kMaxRowOperands == 12 && kMaxOutputs == 4);

/// Texts of the kernels <op>_rows, <op>_columns, <op>_sums and <op>_numbers; empty where there is
/// nothing for one to do. Elements are of type T, what the rows share of type U; kFlags has bit k
/// where operand k, shared by the rows, is there.
struct CudaRows {
  std::string rows;     ///< Results of elements and of rows, and what each row adds to a total.
  std::string columns;  ///< Sums over blocks of kReduceBlock rows: totals[k][block][n],
  std::string sums;     ///< and over the p.rows blocks of one of them, in[0], to out[0].
  std::string numbers;  ///< Results that are one number.
  bool served = true;   ///< False: a sum of columns needs a fold; the op is taken apart instead.
};
CudaRows cuda_rows(const RowInfo& info, const std::string& op);

/// The same of a reduction, in one of its passes: the text of the kernel reduction_rows,
/// reduction_columns or reduction_sums. in[0] has elements of type T, out[0] gets those of type U,
/// or of type T from reduction_sums.
enum class ReductionPart : uint8_t { Rows, Columns, Sums };
std::string cuda_reduction(const ReductionInfo& info, DType compute, ReductionPart part, bool map,
                           bool finish);

}  // namespace brrr::program
