#include "ops/program/cpu_row_text.h"

#include "ops/kinds/reduction.h"

namespace brrr::program {

void RowText::plan_scratch() {
  const int64_t blocks = (rows_ + kReduceBlock - 1) / kReduceBlock;
  const auto room = [&](int id, int64_t count) {
    scratch_of_.emplace_back(id, out_.scratch);
    const auto item = static_cast<int64_t>(itemsize(at(id).type));
    out_.scratch += (count * item + 63) / 64 * 64;
  };
  for (int id : columns_) room(id, blocks * padded_);
  for (int id : totals_) room(id, rows_ + 16);
  if (out_.scratch) out_.arguments.push_back({CpuArgument::Scratch});
}

void RowText::begin() {
  pointers();
  for (const auto& [id, offset] : scratch_of_) {
    print("{0}* const s{1} = ({0}*)(a[{2}] + {3});\n", element(id), id, out_.arguments.size() - 1,
          offset);
  }
  std::vector<int> never = all(Statement::Never);
  std::erase_if(never, [&](int id) {
    return !of(id).live || of(id).after || at(id).kind == Statement::Store;
  });
  emit(never, 1, false);
}

void RowText::clear_columns() {
  for (int id : columns_) {
    const std::string clear =
        function(fmt::format("static __attribute__((noinline)) void $0({}* x, long n, {} v) {{\n"
                             "for (long i = 0; i < n; i += 16) store(x + i, v);\n}}\n",
                             element(id), vector(id)));
    print("{0}(s{1} + k * {2}, {2}, {3});\n", clear, id, padded_, name(at(id).args[1], 0));
  }
}

void RowText::finish() {
  text_ = "(char* const* a, long, long) {\n";
  begin();
  for (int id : totals_) fold_all(id, std::to_string(rows_));
  std::vector<int> places;  // Statements of each place in the rows.
  for (int id : live()) {
    const Statement& s = at(id);
    if (!of(id).after) continue;
    const bool store = s.kind == Statement::Store;
    if (store ? inner_stride(s) != 0 : in_row(id)) {
      places.push_back(id);
    } else if (s.kind == Statement::Formula) {
      print("const auto v{} = {};\n", id, formula(id, 0));
    } else if (store) {
      store_number(s);
    }
  }
  if (!columns_.empty()) finish_columns(places);
  text_ += "}\n";
  out_.last = printed();
}

// The blocks one after the other.
void RowText::finish_columns(const std::vector<int>& places) {
  const int64_t blocks = (rows_ + kReduceBlock - 1) / kReduceBlock;
  for (int id : places) {
    if (at(id).kind != Statement::Store) continue;
    print("{0} const p{1} = o{1};\n", pointer_type(window(at(id))), at(id).which);
  }
  for (int id : columns_) {
    if (blocks == 1) continue;
    const std::string add = function(
        fmt::format("static __attribute__((noinline)) void $0({}* x, long n, long blocks) {{\n"
                    "for (long i = 0; i < n; i += 16) {{\n"
                    "{} c = load(x + i);\n"
                    "for (long b = 1; b < blocks; ++b) c = {};\n"
                    "store(x + i, {});\n}}\n}}\n",
                    element(id), carried(id),
                    combined(id, value_of(id, "c"), "load(x + b * n + i)"), value_of(id, "c")));
    print("{}(s{}, {}, {});\n", add, id, padded_, blocks);
  }
  print(
      "for (long i = 0; i < {0}; i += 16) {{\nconst int n = {0} - i < 16 ? (int)({0} - i) "
      ": 16;\n",
      n_);
  for (int id : columns_) print("const auto v{0}_0 = load(s{0} + i);\n", id);
  for (int id : places) {
    if (at(id).kind != Statement::FoldRows) text_ += CpuText::line(id, 0, true) + ";\n";
  }
  text_ += "}\n";
}

}  // namespace brrr::program
