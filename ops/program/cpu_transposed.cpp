// The CPU's kernel of a walk over elements that reads some operands transposed: they are contiguous
// along an outer dim and strided along the innermost one. The library's load_transposed_block()
// transposes them block by block, as it does for eager calls (ops/kinds/strided_matrix.h).
#include "ops/kinds/strided_matrix.h"
#include "ops/program/cpu_text.h"

namespace brrr::program {

namespace {

const int64_t* strides_read(const Window& w) {
  return w.in_memory() && !w.stored ? w.stride : nullptr;
}

// The outer dim along which a transposed window is contiguous; -1: no window is transposed.
int transposed_dim(const Program& p) {
  return brrr::transposed_dim(p.space.ndim, p.space.size, static_cast<int>(p.windows.size()),
                              [&](int k) { return strides_read(p.window(k)); });
}

// The program with that dim moved next to the innermost one.
Program reordered(Program p) {
  const int dim = transposed_dim(p);
  move_before_last(p.space.size, dim, p.space.ndim);
  for (Window& w : p.windows) move_before_last(w.stride, dim, p.space.ndim);
  return p;
}
// Whether a window of a program so reordered is transposed.
bool is_transposed(const Program& p, const Window& w) {
  const int64_t* const read = strides_read(w);
  return read && brrr::is_transposed(p.space.ndim, p.space.size, read, p.space.ndim - 2);
}

// The program that the element text sees: transposed windows have the strides of their blocks.
Program as_blocks(Program p) {
  for (Window& w : p.windows) {
    if (is_transposed(p, w)) w.stride[p.space.ndim - 1] = 1;
  }
  return p;
}

class TransposedWalk : public CpuText {
 public:
  TransposedWalk(const Program& p, const Program& blocks)
      : CpuText(blocks), reordered_(p), inner_(ndim_ - 1), n_(size_[inner_]) {
    for (int w = 0; w < windows(); ++w) {
      if (!window(w).touched()) continue;
      touched_.insert(w);
      const int64_t* stride = window(w).stride;
      if (is_transposed(p, p.window(w)))
        transposed_.insert(w);
      else if (stride[inner_] || stride[inner_ - 1])
        flat_ &= stride[inner_] == 1 && stride[inner_ - 1] == n_;
    }
  }

  CpuKernel run(bool in_order) {
    out_.arguments.push_back({CpuArgument::Across});
    out_.extent = p_.space.numel() / n_;
    out_.unit = in_order ? n_ : 0;
    out_.grain = std::max<int64_t>(1, kGrain / n_);
    print("(char* const* a, long begin, long end) {{\n");
    pointers();
    print(
        "auto* const across = (void (*)(unsigned char, char*, long, unsigned char, const char*, "
        "long, long, long))a[{}];\n",
        out_.arguments.size() - 1);
    for (int w : transposed_) print("alignas(64) {} t{}[{}];\n", memory(w), w, kTransposeBlock);
    emit(all(Statement::Never), 1, false);
    blocks();
    end_body();
    return std::move(out_);
  }

 private:
  // Blocks of rows that share the outer dims' indices, each in parts of at most `width_` columns.
  void blocks() {
    print(
        "for (long r = begin, rows; r < end; r += rows) {{\n"
        "rows = {0} - r % {0} < {1} ? {0} - r % {0} : {1};\n"
        "if (rows > end - r) rows = end - r;\n",
        size_[inner_ - 1], kTransposeBlock / width_);
    row_pointers("r", touched_, "q");
    const bool whole = n_ == width_;
    if (whole)
      print("const long c = 0;\n");
    else
      print("for (long c = 0; c < {}; c += {}) {{\n", n_, width_);
    const std::string m =
        whole ? std::to_string(n_) : fmt::format("({0} - c < {1} ? {0} - c : {1})", n_, width_);
    for (int w : transposed_) {
      print("across({0}, (char*)t{1}, {2}, {0}, (const char*)(q{1} + c * {3}), {3}, rows, {4});\n",
            static_cast<int>(window(w).dtype), w, width_, inner_stride(reordered_.window(w)), m);
    }
    elements(m);
    text_ += whole ? "}\n" : "}\n}\n";
  }
  void elements(const std::string& m) {
    const std::vector<int> ids = all(Statement::InRow);
    const int unroll = choose_unroll(ids);
    const bool contiguous = flat_ && n_ == width_;  // The rows are contiguous.
    print("{}", contiguous ? "const long k = 0;\n" : "for (long k = 0; k < rows; ++k) {\n");
    for (int w : touched_) {
      const int64_t* stride = window(w).stride;
      const std::string type = pointer_type(window(w));
      if (transposed_.contains(w))
        print("{} const p{} = t{} + k * {};\n", type, w, w, width_);
      else
        print("{0} const p{1} = q{1} + k * {2} + c * {3};\n", type, w, stride[inner_ - 1],
              stride[inner_]);
    }
    emit(all(Statement::WithRow), 1, false);
    if (contiguous)
      loops(ids, "0", fmt::format("rows * {}", n_), unroll);
    else
      loops(ids, "0", m, unroll, n_ == width_ ? n_ : 0);
    if (!contiguous) text_ += "}\n";
  }

  const Program& reordered_;
  const int inner_;
  const int64_t n_, width_ = std::min(n_, kTransposeWidth);
  std::set<int> touched_, transposed_;
  bool flat_ = true;
};

}  // namespace

bool reads_transposed(const Program& p) { return transposed_dim(p) >= 0; }

CpuKernel cpu_transposed(const Program& p) {
  const Program rows = reordered(p), text = as_blocks(rows);
  // The outermost dim stays outermost, unless it is the one that is moved.
  return TransposedWalk(rows, text).run(transposed_dim(p) > 0 || p.space.ndim == 2);
}

}  // namespace brrr::program
