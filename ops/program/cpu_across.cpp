// The CPU's kernel of a walk over elements that reads some operands across: what lies side by side
// in these belongs to rows one after the other. They are turned block by block, as an eager call's
// are (ops/kinds/strided_matrix.h), by the library's own function.
#include "ops/kinds/strided_matrix.h"
#include "ops/program/cpu_text.h"

namespace brrr::program {

namespace {

const int64_t* strides_read(const Window& w) {
  return w.in_memory() && !w.stored ? w.stride : nullptr;
}

// The dim along which a window lies across the walk; -1: none does.
int across_dim(const Program& p) {
  return brrr::across_dim(p.space.ndim, p.space.size, static_cast<int>(p.windows.size()),
                          [&](int k) { return strides_read(p.window(k)); });
}

// The same with that dim the last but one.
Program turned(Program p) {
  const int dim = across_dim(p);
  put_last_but_one(p.space.size, dim, p.space.ndim);
  for (Window& w : p.windows) put_last_but_one(w.stride, dim, p.space.ndim);
  return p;
}
// Of a walk that is turned.
bool lies_across(const Program& p, const Window& w) {
  const int64_t* const read = strides_read(w);
  return read && brrr::lies_across(p.space.ndim, p.space.size, read, p.space.ndim - 2);
}

// What the text of elements sees: windows that lie across as their blocks have them.
Program in_blocks(Program p) {
  for (Window& w : p.windows) {
    if (lies_across(p, w)) w.stride[p.space.ndim - 1] = 1;
  }
  return p;
}

class AcrossWalk : public CpuText {
 public:
  AcrossWalk(const Program& p, const Program& blocks)
      : CpuText(blocks), turned_(p), inner_(ndim_ - 1), n_(size_[inner_]) {
    for (int w = 0; w < windows(); ++w) {
      if (!window(w).touched()) continue;
      touched_.insert(w);
      const int64_t* stride = window(w).stride;
      if (lies_across(p, p.window(w)))
        across_.insert(w);
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
    for (int w : across_) print("alignas(64) {} t{}[{}];\n", memory(w), w, kAcrossBlock);
    emit(all(Statement::Never), 1, false);
    blocks();
    end_body();
    return std::move(out_);
  }

 private:
  // As many rows as a block has, of one index of the dims before; then parts of them side by side.
  void blocks() {
    print(
        "for (long r = begin, rows; r < end; r += rows) {{\n"
        "rows = {0} - r % {0} < {1} ? {0} - r % {0} : {1};\n"
        "if (rows > end - r) rows = end - r;\n",
        size_[inner_ - 1], kAcrossBlock / width_);
    row_pointers("r", touched_, "q");
    const bool whole = n_ == width_;
    if (whole)
      print("const long c = 0;\n");
    else
      print("for (long c = 0; c < {}; c += {}) {{\n", n_, width_);
    const std::string m =
        whole ? std::to_string(n_) : fmt::format("({0} - c < {1} ? {0} - c : {1})", n_, width_);
    for (int w : across_) {
      print("across({0}, (char*)t{1}, {2}, {0}, (const char*)(q{1} + c * {3}), {3}, rows, {4});\n",
            static_cast<int>(window(w).dtype), w, width_, inner_stride(turned_.window(w)), m);
    }
    elements(m);
    text_ += whole ? "}\n" : "}\n}\n";
  }
  void elements(const std::string& m) {
    const std::vector<int> ids = all(Statement::InRow);
    const int unroll = choose_unroll(ids);
    const bool together = flat_ && n_ == width_;  // The rows follow one another.
    print("{}", together ? "const long k = 0;\n" : "for (long k = 0; k < rows; ++k) {\n");
    for (int w : touched_) {
      const int64_t* stride = window(w).stride;
      const std::string type = pointer_type(window(w));
      if (across_.contains(w))
        print("{} const p{} = t{} + k * {};\n", type, w, w, width_);
      else
        print("{0} const p{1} = q{1} + k * {2} + c * {3};\n", type, w, stride[inner_ - 1],
              stride[inner_]);
    }
    emit(all(Statement::WithRow), 1, false);
    if (together)
      loops(ids, "0", fmt::format("rows * {}", n_), unroll);
    else
      loops(ids, "0", m, unroll, n_ == width_ ? n_ : 0);
    if (!together) text_ += "}\n";
  }

  const Program& turned_;
  const int inner_;
  const int64_t n_, width_ = std::min(n_, kAcrossWidth);
  std::set<int> touched_, across_;
  bool flat_ = true;
};

}  // namespace

bool reads_across(const Program& p) { return across_dim(p) >= 0; }

CpuKernel cpu_across(const Program& p) {
  const Program rows = turned(p), text = in_blocks(rows);
  // The first dim stays the first, unless it is the one that is moved.
  return AcrossWalk(rows, text).run(across_dim(p) > 0 || p.space.ndim == 2);
}

}  // namespace brrr::program
