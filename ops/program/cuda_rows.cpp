// The text of a row op's kernels for a GPU.
#include <algorithm>

#include "core/check.h"
#include "ops/program/cuda_row_lines.h"
#include "ops/program/cuda_rows_text.h"
#include "ops/program/program.h"
#include "ops/program/rows.h"
#include "ops/vocabulary/spelling.h"

namespace brrr::program {

RowProgram row_program(const RowInfo& info) {
  RowProgram p;
  SymScope scope(p.statements, kFloat32);
  int operands[kMaxRowOperands];
  for (int k = 0; k < static_cast<int>(info.operands.size()); ++k) {
    const Operand o = info.operands[static_cast<size_t>(k)].kind;
    operands[k] = k;
    if (o == Operand::Id) continue;
    const bool scalar = o == Operand::Scalar;
    operands[k] = scope.add({.kind = scalar ? Statement::Number : Statement::Load,
                             .type = kFloat32,
                             .which = k,
                             .varies = scalar || o == Operand::Number ? Statement::Never
                                       : o == Operand::PerRow         ? Statement::WithRow
                                                                      : Statement::InRow});
  }
  p.results = info.symbols(operands);
  return p;
}

namespace {

class RowText : RowLines {
 public:
  /// `put` stores a number of a row, or of a column where that is a result.
  RowText(const RowInfo& info, const RowProgram& p, const std::string& op,
          const std::string& put = "store((TC*)")
      : RowLines(info, p), op_(op), put_(put), depth_(p.statements.size()) {
    for (size_t id = 0; id < p.statements.size(); ++id) {
      const Statement& s = p.statements[id];
      for (int a : s.args) depth_[id] = std::max(depth_[id], depth_[static_cast<size_t>(a)]);
      depth_[id] += s.kind == Statement::Fold;
    }
  }

  std::string rows() {
    std::vector<int> wanted;
    for (size_t k = 0; k < p_.results.size(); ++k) {
      if (info_.results[k] == RowResult::Number) {
        for (int id : needed({p_.results[k]})) {
          if (at(id).kind == Statement::Total) wanted.push_back(at(id).args[0]);
        }
      } else if (info_.results[k] != RowResult::Column) {
        wanted.push_back(p_.results[k]);
      }
    }
    if (wanted.empty()) return "";
    begin("BLOCK_KERNEL", "rows", wanted, "kThreads");
    out_ += "  const long row = this_row(), n = length_of(p, row);\n";
    for (int k : operands(needed(wanted))) {
      out_ += fmt::format("  Operand x{0}(p, p.in[{0}], n);\n", k);
    }
    ids(needed(wanted));
    const std::vector<int> all = needed(wanted);
    int deepest = 0;
    for (int id : all) deepest = std::max(deepest, depth_[static_cast<size_t>(id)]);
    for (int d = 0; d <= deepest; ++d) {
      if (d > 0) folds(all, d);
      for (int id : all) {
        const Statement& s = at(id);
        if (depth_[static_cast<size_t>(id)] == d && s.varies != Statement::InRow &&
            s.kind != Statement::Fold) {
          line(id, "  ");
        }
      }
    }
    for (size_t k = 0; k < p_.results.size(); ++k) {
      if (info_.results[k] == RowResult::Each) elements(k);
    }
    std::string each;
    for (size_t k = 0, total = 0; k < p_.results.size(); ++k) {
      if (info_.results[k] == RowResult::PerRow) {
        each += fmt::format("  {}p.out[{}] + row, {});\n", put_, k, name(p_.results[k]));
      }
      if (info_.results[k] != RowResult::Number) continue;
      for (int id : needed({p_.results[k]})) {
        if (at(id).kind != Statement::Total) continue;
        each +=
            fmt::format("  store((TC*)p.totals[{}] + row, {});\n", total++, name(at(id).args[0]));
      }
    }
    if (!each.empty()) out_ += "  if (lane() != 0 || row >= p.rows) return;\n" + each;
    return out_ + "}\n";
  }

  // A thread has a group of columns and takes the rows of a block one after the other, as on the
  // CPU. Its results go to `to`, a format of their number.
  std::string columns(const char* to) {
    std::vector<int> wanted, folds, of;
    for (size_t k = 0; k < p_.results.size(); ++k) {
      if (info_.results[k] != RowResult::Column) continue;
      wanted.push_back(p_.results[k]);
      folds.push_back(column_fold(wanted.back()));
      of.push_back(at(folds.back()).args[0]);
    }
    if (wanted.empty()) return "";
    begin("KERNEL", "columns", wanted, "256");
    out_ += R"(  const long t = (long)blockIdx.x * 256 + threadIdx.x, groups = p.n / kGroup;
  const long block = t / groups, i = t % groups * kGroup, n = p.n, matrix = block / p.chunks;
  if (matrix >= p.matrices) return;
  const long first = block % p.chunks * 64, last = first + 64 < p.rows ? first + 64 : p.rows;
)";
    static_assert(kReduceBlock == 64, "as in the text");
    const std::vector<int> all = needed(of);
    for (size_t k = 0; k < wanted.size(); ++k) {
      out_ += fmt::format("  Group s{0};\n  for (int u = 0; u < kGroup; ++u) s{0}.v[u] = {1};\n", k,
                          init(folds[k]));
    }
    out_ += "#pragma unroll 4\n  for (long row = first; row < last; ++row) {\n";
    out_ += "    const long at = matrix * p.stride + row * p.step + i;\n";
    for (int k : operands(all)) {
      out_ += fmt::format("    const Group g{0} = load_group((const T*)p.in[{0}] + at);\n", k);
    }
    ids(all);
    for (int id : all) {
      if (at(id).varies != Statement::InRow) line(id, "    ");
    }
    shared(all, "    ");
    out_ += "#pragma unroll\n    for (int u = 0; u < kGroup; ++u) {\n";
    for (int id : all) {
      if (at(id).varies == Statement::InRow) line(id, "      ");
    }
    for (size_t k = 0; k < wanted.size(); ++k) {
      const std::string sum = fmt::format("s{}.v[u]", k);
      out_ += fmt::format("      {} = {};\n", sum, fill(at(folds[k]).text, {sum, name(of[k])}));
    }
    out_ += "    }\n  }\n#pragma unroll\n  for (int u = 0; u < kGroup; ++u) {\n";
    for (size_t k = 0; k < wanted.size(); ++k) {
      finish(wanted[k], folds[k], fmt::format("s{}.v[u]", k), "    ");
      out_ += fmt::format("    {}{} + block * n + i + u, {});\n", put_,
                          fmt::format(fmt::runtime(to), k), name(wanted[k]));
    }
    return out_ + "  }\n}\n";
  }

  // What blocks of rows gave: block b goes to slot b % 32, which takes its own in order; then a
  // tree over the slots.
  std::string sums() {
    const auto column = std::find(info_.results.begin(), info_.results.end(), RowResult::Column);
    if (column == info_.results.end()) return "";
    const int result = p_.results[static_cast<size_t>(column - info_.results.begin())];
    const int fold = column_fold(result);
    std::fill(names_.begin(), names_.end(), "");
    out_ = fmt::format(R"(BLOCK_KERNEL({}_sums, RowArguments, 1024) {{
  __shared__ TC partial[32][32];
  const auto combine = [](TCV a, TCV b) {{ return {}; }};
  const int tx = threadIdx.x % 32, slot = threadIdx.x / 32;
  const long across = (p.n + 31) / 32, matrix = blockIdx.x / across;
  const long column = blockIdx.x % across * 32 + tx;
  TCV sum = {};
  if (column < p.n) {{
#pragma unroll 8
    for (long b = slot; b < p.rows; b += 32) {{
      sum = combine(sum, load((const TC*)p.in[0] + (matrix * p.rows + b) * p.n + column));
    }}
  }}
  partial[slot][tx] = sum[0];
  for (int d = 16; d > 0; d /= 2) {{
    __syncthreads();
    if (slot >= d) continue;
    partial[slot][tx] = combine(splat(partial[slot][tx]), splat(partial[slot + d][tx]))[0];
  }}
  if (slot != 0 || column >= p.n) return;
  sum = splat(partial[0][tx]);
)",
                       op_, fill(at(fold).text, {"a", "b"}), init(fold));
    finish(result, fold, "sum", "  ");
    return out_ +
           fmt::format("  put((T*)p.out[0] + matrix * p.n + column, {});\n}}\n", name(result));
  }

  // One block: each total as a row of its own, then what is made of them.
  std::string numbers() {
    std::vector<int> wanted;
    for (size_t k = 0; k < p_.results.size(); ++k) {
      if (info_.results[k] == RowResult::Number) wanted.push_back(p_.results[k]);
    }
    if (wanted.empty()) return "";
    begin("BLOCK_KERNEL", "numbers", wanted, "1024");
    out_ += "  const auto add = [](TCV a, TCV b) { return a + b; };\n";
    std::string sums, rest;
    int total = 0;
    for (int result : wanted) {
      for (int id : needed({result})) {
        if (at(id).kind != Statement::Total) continue;
        const std::string sum = fmt::format("t{}", total);
        out_ += fmt::format("  TCV {}{{}};\n", sum);
        sums += fmt::format("    {0} = {0} + load((const TC*)p.totals[{1}] + r);\n", sum, total++);
        rest += fmt::format("  {0} = across({0}, add);\n", sum);
        names_[static_cast<size_t>(id)] = sum;
      }
    }
    out_ += "#pragma unroll 4\n  for (long r = threadIdx.x; r < p.rows; r += 1024) {\n" + sums +
            "  }\n" + rest + "  if (threadIdx.x != 0) return;\n";
    for (int id : needed(wanted)) {
      if (at(id).varies == Statement::Never && at(id).kind != Statement::Total) line(id, "  ");
    }
    for (size_t k = 0; k < p_.results.size(); ++k) {
      if (info_.results[k] != RowResult::Number) continue;
      const char* put = k == 0 ? "put((T*)" : "store((TC*)";
      out_ += fmt::format("  {}p.out[{}], {});\n", put, k, name(p_.results[k]));
    }
    return out_ + "}\n";
  }

  bool columns_fold() const {
    for (size_t k = 0; k < p_.results.size(); ++k) {
      if (info_.results[k] == RowResult::Column && depth_[static_cast<size_t>(p_.results[k])] > 0) {
        return true;
      }
    }
    return false;
  }

 private:
  // The fold over the rows that a result of columns is made of.
  int column_fold(int result) const {
    for (int id : needed({result})) {
      if (at(id).kind == Statement::FoldRows) return id;
    }
    fail("{}: a result of columns is no sum over rows", op_);
  }
  std::string init(int fold) const { return leaf(at(fold).args[1], ""); }
  // The lines from a fold, whose value `what` is, to the result made of it.
  void finish(int result, int fold, const std::string& what, const std::string& indent) {
    names_[static_cast<size_t>(fold)] = what;
    for (int id : needed({result})) {
      if (id > fold) line(id, indent);
    }
  }
  void begin(const char* macro, const char* what, const std::vector<int>& wanted,
             const char* threads) {
    std::fill(names_.begin(), names_.end(), "");
    out_ = fmt::format("constexpr int kOperands = {};\n",
                       std::max<size_t>(1, operands(needed(wanted)).size()));
    out_ += kRowText;
    out_ += fmt::format("{}({}_{}, RowArguments, {}) {{\n", macro, op_, what, threads);
  }

  // All folds of one depth in one pass.
  void folds(const std::vector<int>& all, int depth) {
    std::vector<int> these, of;
    for (int id : all) {
      if (at(id).kind != Statement::Fold || depth_[static_cast<size_t>(id)] != depth) continue;
      these.push_back(id);
      of.push_back(at(id).args[0]);
    }
    const std::vector<int> list = in_row(of);
    std::string after;
    for (int id : these) {
      out_ += fmt::format(
          "  const auto combine{0} = [](TCV a, TCV b) {{ return {1}; }};\n  TCV v{0} = {2};\n", id,
          fill(at(id).text, {"a", "b"}), init(id));
      after += fmt::format("  v{0} = across(v{0}, combine{0});\n", id);
    }
    out_ += fmt::format("  const auto fold{} = [&](long i{}) {{\n", depth, groups(list));
    shared(list, "    ");
    out_ += "#pragma unroll\n    for (int u = 0; u < kGroup; ++u) {\n";
    for (int id : list) line(id, "      ");
    for (size_t k = 0; k < these.size(); ++k) {
      out_ += fmt::format("      v{0} = combine{0}(v{0}, {1});\n", these[k], name(of[k]));
    }
    out_ +=
        fmt::format("    }}\n  }};\n  for_groups(n, fold{}{});\n{}", depth, passed(list), after);
    for (int id : these) names_[static_cast<size_t>(id)] = fmt::format("v{}", id);
  }

  void elements(size_t k) {
    const std::vector<int> list = in_row({p_.results[k]});
    out_ += fmt::format("  const auto result{} = [&](long i{}) {{\n", k, groups(list));
    shared(list, "    ");
    out_ += "    Group y;\n#pragma unroll\n    for (int u = 0; u < kGroup; ++u) {\n";
    for (int id : list) line(id, "      ");
    out_ += fmt::format("      y.v[u] = {};\n    }}\n    return y;\n  }};\n", name(p_.results[k]));
    out_ += fmt::format("  map_groups(n, (T*)p.out[{0}] + row * p.n, result{0}{1});\n", k,
                        passed(list));
  }

  const std::string op_, put_;
  std::vector<int> depth_;  // By statement: how many folds lie behind it.
};

}  // namespace

CudaRows cuda_rows(const RowInfo& info, const std::string& op) {
  const RowProgram p = row_program(info);
  RowText text(info, p, op);
  if (text.columns_fold())
    return {.rows = "", .columns = "", .sums = "", .numbers = "", .served = false};
  return {.rows = text.rows(),
          .columns = text.columns("p.totals[{}]"),
          .sums = text.sums(),
          .numbers = text.numbers()};
}

std::string cuda_reduction(const ReductionInfo& info, DType compute, ReductionPart part, bool map,
                           bool finish) {
  const bool rows = part == ReductionPart::Rows;
  RowInfo one;
  one.operands = {{Operand::Each, 0, 0}};
  one.results = {rows ? RowResult::PerRow : RowResult::Column};
  RowProgram p;
  {
    SymScope scope(p.statements, compute);
    const int x = scope.add(
        {.kind = Statement::Load, .type = compute, .which = 0, .varies = Statement::InRow});
    const auto fold = rows ? Statement::Fold : Statement::FoldRows;
    p.results = {info.symbols(x, fold, {Statement::Number, compute, 1}, map, finish)};
  }
  RowText text(one, p, "reduction", "put_u((U*)");
  return rows                             ? text.rows()
         : part == ReductionPart::Columns ? text.columns("p.out[{}]")
                                          : text.sums();
}

}  // namespace brrr::program
