// The text of a row op's kernels for a GPU.
#include <algorithm>
#include <functional>

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

// Statements as expressions and lines of a kernel.
class RowText {
 public:
  RowText(const RowInfo& info, const RowProgram& p, const std::string& op)
      : info_(info), op_(op), p_(p), names_(p.statements.size()), depth_(p.statements.size()) {
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
    out_ += "  const long row = this_row(), n = row < p.rows ? p.n : 0;\n";
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
        each += fmt::format("  store((TC*)p.out[{}] + row, {});\n", k, name(p_.results[k]));
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
  // CPU.
  std::string columns() {
    std::vector<int> wanted, of;
    for (size_t k = 0; k < p_.results.size(); ++k) {
      if (info_.results[k] != RowResult::Column) continue;
      wanted.push_back(p_.results[k]);
      of.push_back(at(p_.results[k]).args[0]);
    }
    if (wanted.empty()) return "";
    begin("KERNEL", "columns", wanted, "256");
    out_ += R"(  const long t = (long)blockIdx.x * 256 + threadIdx.x, groups = p.n / kGroup;
  const long block = t / groups, i = t % groups * kGroup, n = p.n;
  if (block * 64 >= p.rows && block > 0) return;
  const long last = (block + 1) * 64 < p.rows ? (block + 1) * 64 : p.rows;
)";
    static_assert(kReduceBlock == 64, "as in the text");
    const std::vector<int> all = needed(of);
    for (size_t k = 0; k < wanted.size(); ++k) {
      out_ += fmt::format("  Group s{0};\n  for (int u = 0; u < kGroup; ++u) s{0}.v[u] = {1};\n", k,
                          leaf(at(wanted[k]).args[1], ""));
    }
    out_ += "#pragma unroll 4\n  for (long row = block * 64; row < last; ++row) {\n";
    for (int k : operands(all)) {
      out_ +=
          fmt::format("    const Group g{0} = load_group((const T*)p.in[{0}] + row * n + i);\n", k);
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
      out_ += fmt::format("      {} = {};\n", sum, fill(at(wanted[k]).text, {sum, name(of[k])}));
    }
    out_ += "    }\n  }\n#pragma unroll\n  for (int u = 0; u < kGroup; ++u) {\n";
    for (size_t k = 0; k < wanted.size(); ++k) {
      out_ += fmt::format("    store((TC*)p.totals[{0}] + block * n + i + u, s{0}.v[u]);\n", k);
    }
    return out_ + "  }\n}\n";
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
  const Statement& at(int id) const { return p_.statements[static_cast<size_t>(id)]; }
  const std::string& name(int id) const { return names_[static_cast<size_t>(id)]; }
  Operand kind(int operand) const { return info_.operands[static_cast<size_t>(operand)].kind; }

  // The statements that these ones are made of, in order; not beyond a total.
  std::vector<int> needed(const std::vector<int>& wanted) const {
    std::vector<bool> in(p_.statements.size());
    for (int id : wanted) in[static_cast<size_t>(id)] = true;
    std::vector<int> list;
    for (int id = static_cast<int>(p_.statements.size()) - 1; id >= 0; --id) {
      if (!in[static_cast<size_t>(id)]) continue;
      list.push_back(id);
      if (at(id).kind == Statement::Total) continue;
      for (int a : at(id).args) in[static_cast<size_t>(a)] = true;
    }
    std::reverse(list.begin(), list.end());
    return list;
  }
  // Operands of elements that statements load.
  std::vector<int> operands(const std::vector<int>& list) const {
    std::vector<int> found;
    for (int id : list) {
      if (at(id).kind == Statement::Load && kind(at(id).which) == Operand::Each) {
        found.push_back(at(id).which);
      }
    }
    return found;
  }
  // What `id` is made of within the row.
  std::vector<int> in_row(const std::vector<int>& wanted) const {
    std::vector<int> list = needed(wanted);
    std::erase_if(list, [&](int id) { return at(id).varies != Statement::InRow; });
    return list;
  }

  void begin(const char* macro, const char* what, const std::vector<int>& wanted,
             const char* threads) {
    std::fill(names_.begin(), names_.end(), "");
    out_ = fmt::format("constexpr int kOperands = {};\n",
                       std::max<size_t>(1, operands(needed(wanted)).size()));
    out_ += kRowText;
    out_ += fmt::format("{}({}_{}, RowArguments, {}) {{\n", macro, op_, what, threads);
  }

  void ids(const std::vector<int>& list) {
    std::vector<bool> done(info_.operands.size());
    for (int id : list) {
      const Statement& s = at(id);
      if (s.kind != Statement::Counts && s.kind != Statement::IsAt && s.kind != Statement::Pick) {
        continue;
      }
      if (done[static_cast<size_t>(s.which)]) continue;
      done[static_cast<size_t>(s.which)] = true;
      out_ += fmt::format(
          "  const long id{0} = row < p.rows ? ((const long*)p.in[{0}])[row] : p.ignored[{0}];\n"
          "  const bool counts{0} = id{0} != p.ignored[{0}] && "
          "in_range(p.fault, id{0}, p.n, p.op);\n",
          s.which);
    }
  }

  // What the rows share, of a group.
  void shared(const std::vector<int>& list, const char* indent) {
    for (int id : list) {
      if (at(id).kind != Statement::Load || kind(at(id).which) == Operand::Each) continue;
      out_ += fmt::format(
          "{0}Group g{1} = {{}};\n{0}if constexpr (kFlags >> {1} & 1) g{1} = "
          "load_group_u((const U*)p.in[{1}] + i);\n",
          indent, at(id).which);
    }
  }

  // An expression for what is no formula.
  std::string leaf(int id, const std::string& place) const {
    const Statement& s = at(id);
    switch (s.kind) {
      case Statement::Number:
        return fmt::format("splat((TC)p.scalar[{}])", s.which);
      case Statement::Constant:
        return fmt::format("splat((TC)({}))", s.text);
      case Statement::Length:
        return "splat((TC)p.n)";
      case Statement::Counts:
        return fmt::format("b16(-(int)counts{})", s.which);
      case Statement::IsAt:
        return fmt::format("b16(-(int)({} == id{}))", place, s.which);
      default:
        break;
    }
    switch (kind(s.which)) {
      case Operand::PerRow:
        return fmt::format("row < p.rows ? load((const TC*)p.in[{}] + row) : TCV{{}}", s.which);
      case Operand::Number:
        return fmt::format("load((const TC*)p.in[{}])", s.which);
      case Operand::Weight:
      case Operand::Bias:
        return fmt::format("kFlags >> {0} & 1 ? g{0}.v[u] : splat((TC){1})", s.which,
                           kind(s.which) == Operand::Weight ? "1" : "-0.0");
      default:
        return fmt::format("g{}.v[u]", s.which);
    }
  }

  // A statement's line, by which later ones name it.
  void line(int id, const std::string& indent) {
    const Statement& s = at(id);
    if (s.kind == Statement::Total) return;
    std::string what;
    if (s.kind == Statement::Pick) {
      what = pick(s);
    } else if (s.kind == Statement::Formula) {
      std::vector<std::string> args;
      for (int a : s.args) args.push_back(name(a));
      what = fill(s.text, args);
    } else {
      what = leaf(id, "i + u");
    }
    names_[static_cast<size_t>(id)] = fmt::format("v{}", id);
    out_ += fmt::format("{}const auto v{} = {};\n", indent, id, what);
  }

  // An element of the row, computed where it is.
  std::string pick(const Statement& s) {
    const std::function<std::string(int)> value = [&](int id) -> std::string {
      const Statement& e = at(id);
      if (e.varies != Statement::InRow) return name(id);
      if (e.kind == Statement::Formula) {
        std::vector<std::string> args;
        for (int a : e.args) args.push_back("(" + value(a) + ")");
        return fill(e.text, args);
      }
      const std::string place = fmt::format("id{}", s.which);
      if (e.kind == Statement::Load && kind(e.which) == Operand::Each) {
        return fmt::format("get((const T*)p.in[{}] + row * p.n + {})", e.which, place);
      }
      if (e.kind == Statement::Load) {
        return fmt::format(
            "(kFlags >> {0} & 1 ? get_u((const U*)p.in[{0}] + {1}) : "
            "splat((TC){2}))",
            e.which, place, kind(e.which) == Operand::Weight ? "1" : "-0.0");
      }
      return leaf(id, place);
    };
    return fmt::format("counts{} ? {} : TCV{{}}", s.which, value(s.args[0]));
  }

  // A lambda's parameters: the groups of the operands that it reads; and the operands themselves.
  std::string groups(const std::vector<int>& list) const {
    std::string text;
    for (int k : operands(list)) text += fmt::format(", const Group& g{}", k);
    return text;
  }
  std::string passed(const std::vector<int>& list) const {
    std::string text;
    for (int k : operands(list)) text += fmt::format(", x{}", k);
    return text;
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
          fill(at(id).text, {"a", "b"}), name(at(id).args[1]));
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

  const RowInfo& info_;
  const std::string op_;
  const RowProgram& p_;
  std::vector<std::string> names_;  // By statement: its name in the text.
  std::vector<int> depth_;          // By statement: how many folds lie behind it.
  std::string out_;
};

}  // namespace

CudaRows cuda_rows(const RowInfo& info, const std::string& op) {
  const RowProgram p = row_program(info);
  RowText text(info, p, op);
  if (text.columns_fold()) return {.rows = "", .columns = "", .numbers = "", .served = false};
  return {.rows = text.rows(), .columns = text.columns(), .numbers = text.numbers()};
}

}  // namespace brrr::program
