// The CPU's kernel of a program with one row, a whole tensor: it folds chunk by chunk, in the order
// of a row (ops/kinds/reduction.h), and computes the resulting scalars once all chunks are done. No
// element depends on them. The length is an argument, so that tensors of all sizes share the text.
#include "ops/kinds/reduction.h"
#include "ops/program/cpu_text.h"

namespace brrr::program {

namespace {

class WholeWalk : public CpuText {
 public:
  explicit WholeWalk(const Program& p) : CpuText(p) {
    for (int id = 0; id < statements(); ++id) {
      const Statement& s = at(id);
      const bool scalar = s.kind == Statement::Store && inner_stride(s) == 0;
      if (s.kind == Statement::Fold) {
        folds_.push_back(id);
      } else if (s.varies == Statement::InRow && !scalar) {
        elements_.push_back(id);
      } else if (s.varies == Statement::WithRow || scalar) {
        scalars_.push_back(id);
      }
    }
  }

  CpuKernel run() {
    const int64_t chunks = (p_.row + kReduceChunk - 1) / kReduceChunk;
    out_.arguments.push_back({CpuArgument::Length});
    out_.arguments.push_back({CpuArgument::Scratch});
    out_.extent = chunks;
    out_.unit = kReduceChunk;
    out_.grain = kGrain / kReduceChunk;
    for (int id : folds_) {
      out_.scratch += (chunks * static_cast<int64_t>(itemsize(at(id).type)) + 63) / 64 * 64;
    }
    text_ = "(char* const* a, long begin, long end) {\n";
    begin();
    chunk();
    end_body();
    text_ = "(char* const* a, long, long) {\n";
    begin();
    finish();
    text_ += "}\n";
    out_.last = printed();
    return std::move(out_);
  }

 private:
  void begin() {
    pointers();
    for (int w = 0; w < windows(); ++w) {
      if (window(w).touched()) print("{0} const p{1} = o{1};\n", pointer_type(window(w)), w);
    }
    print(
        "const long length = (long)a[{}], chunks = (length + {}) / {};\n"
        "char* scratch = a[{}];\n",
        out_.arguments.size() - 2, kReduceChunk - 1, kReduceChunk, out_.arguments.size() - 1);
    for (int f : folds_) {
      print(
          "{0}* const s{1} = ({0}*)scratch;\n"
          "scratch += (chunks * (long)sizeof({0}) + 63) / 64 * 64;\n",
          element(f), f);
    }
    emit(all(Statement::Never), 1, false);
  }

  void chunk() {
    print(
        "for (long c = begin; c < end; ++c) {{\nlong i = c * {0};\n"
        "const long to = i + {0} < length ? i + {0} : length;\n",
        kReduceChunk);
    accumulators(folds_);
    text_ += "for (; i + 64 <= to; i += 64) {\n";
    accumulate(elements_, folds_, 4);
    text_ += "}\n";
    for (int f : folds_) {
      print("{0} r{1}[4] = {{a{1}_0, a{1}_1, a{1}_2, a{1}_3}};\n", carried(f), f);
    }
    text_ +=
        "for (int k = 0; i < to; i += 16, ++k) {\n"
        "const int n = to - i < 16 ? (int)(to - i) : 16;\n";
    accumulate(elements_, folds_, 1, true, "r$0[k]");
    text_ += "}\n";
    for (int f : folds_) print("s{}[c] = {};\n", f, fold_four(f, fmt::format("r{}[$0]", f)));
    text_ += "}\n";
  }

  void finish() {
    for (int f : folds_) fold_all(f, "chunks");
    for (int id : scalars_) {
      const Statement& s = at(id);
      if (s.kind == Statement::Store)
        store_scalar(s);
      else
        text_ += line(id, 0, false) + ";\n";
    }
  }

  // Statements, in order: folds, per-element ones, and those that follow the folds.
  std::vector<int> folds_, elements_, scalars_;
};

}  // namespace

CpuKernel cpu_whole(const Program& p) { return WholeWalk(p).run(); }

}  // namespace brrr::program
