// Einstein summation, composed of permute, reshape, slice, mul, sum and matmul: operands multiply
// pairwise from the left; an index is summed once neither a later operand nor the output has it.
#include <algorithm>
#include <iterator>
#include <map>
#include <string_view>

#include "core/autocast.h"
#include "core/check.h"
#include "core/tensor_impl.h"
#include "ops/kinds/view.h"
#include "ops/library_ops.h"
#include "ops/pointwise_ops.h"
#include "ops/reduction_ops.h"

namespace brrr {

namespace {

// One character per index. The dims of an ellipsis are '0', '1', .. from the last one on, which an
// equation cannot contain.
using Indices = std::string;

struct Term {
  Tensor t;
  Indices indices;  // One for each dim, all different.
};

struct Equation {
  std::string text;
  std::vector<Indices> inputs;
  Indices output;
};

bool has(std::string_view indices, char c) { return indices.find(c) != std::string_view::npos; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

// --- reading the equation ------------------------------------------------------------------------

constexpr char kEllipsis = '.';  // Stands for "..." until the operands give its number of dims.

Equation read_equation(const std::string& equation) {
  Equation e{equation, {""}, {}};
  std::string text = equation;
  std::erase(text, ' ');
  Indices letters, *term = &e.inputs[0];
  const auto is_input = [&] { return term != &e.output; };
  for (size_t i = 0; i < text.size(); ++i) {
    if (is_input() && text[i] == ',') {
      term = &e.inputs.emplace_back();
    } else if (is_input() && text.compare(i, 2, "->") == 0) {
      term = &e.output;
      ++i;
    } else if (text.compare(i, 3, "...") == 0) {
      BRRR_CHECK(!has(*term, kEllipsis), "einsum: \"{}\" has two ellipses in one term", equation);
      *term += kEllipsis;
      i += 2;
    } else {
      BRRR_CHECK(is_letter(text[i]),
                 "einsum: '{}' in \"{}\" is no index; write letters, '...', ',' and one '->'",
                 text[i], equation);
      *term += text[i];
      letters += text[i];
    }
  }
  if (!is_input()) return e;
  // The ellipsis, then the indices that occur once, in alphabetical order.
  std::ranges::sort(letters);
  e.output = kEllipsis;
  std::ranges::copy_if(letters, std::back_inserter(e.output),
                       [&](char c) { return std::ranges::count(letters, c) == 1; });
  return e;
}

// Replaces ellipses by the indices of their dims, the number of which follows from the operands.
void name_ellipses(Equation& e, const std::vector<Tensor>& operands) {
  static_assert(kMaxDims == 8);
  const auto put = [](Indices& term, int64_t dims) {
    const size_t at = term.find(kEllipsis);
    if (at != Indices::npos) term.replace(at, 1, &"76543210"[kMaxDims - dims]);
  };
  int64_t widest = 0;
  for (size_t k = 0; k < operands.size(); ++k) {
    const bool ellipsis = has(e.inputs[k], kEllipsis);
    const int64_t letters = static_cast<int64_t>(e.inputs[k].size()) - ellipsis;
    const int64_t rest = operands[k].dim() - letters;
    BRRR_CHECK(ellipsis ? rest >= 0 : rest == 0,
               "einsum: operand {} is {}, but its term in \"{}\" names {} dims", k,
               describe(operands[k].impl()), e.text, letters);
    put(e.inputs[k], rest);
    widest = std::max(widest, rest);
  }
  put(e.output, widest);
}

void check_output(const Equation& e) {
  for (size_t i = 0; i < e.output.size(); ++i) {
    const char c = e.output[i];
    BRRR_CHECK(e.output.find(c) == i, "einsum: index '{}' is twice in the output of \"{}\"", c,
               e.text);
    BRRR_CHECK(std::ranges::any_of(e.inputs, [=](const Indices& term) { return has(term, c); }),
               "einsum: index '{}' in the output of \"{}\" is in no operand", c, e.text);
  }
}

// --- operands ------------------------------------------------------------------------------------

struct Extent {
  int64_t size;
  size_t operand;  // Which has this size.
};

void check_sizes(bool fit, const Equation& e, char c, const Extent& a, const Extent& b) {
  BRRR_CHECK(fit, "einsum: {} has size {} in operand {} and {} in operand {} of \"{}\"",
             is_letter(c) ? fmt::format("index '{}'", c) : "a dim of the ellipsis", a.size,
             a.operand, b.size, b.operand, e.text);
}

/// Operand k with dims that share an index replaced by their diagonal, as last dim: of dims a < b
/// of size n, every (n + 1)-th of the n * n elements.
Term take_diagonals(const Equation& e, Term x, size_t k) {
  for (size_t b = 0; b < x.indices.size(); ++b) {
    const char c = x.indices[b];
    const size_t a = x.indices.find(c);
    if (a == b) continue;
    const int at_a = static_cast<int>(a), at_b = static_cast<int>(b);
    const int64_t n = x.t.size(at_a);
    check_sizes(x.t.size(at_b) == n, e, c, {n, k}, {x.t.size(at_b), k});
    IntList order;
    for (int d = 0; d < x.t.dim(); ++d) {
      if (d != at_a && d != at_b) order.push_back(d);
    }
    order.push_back(at_a);
    order.push_back(at_b);
    x.t = x.t.permute(order).flatten(-2).slice(-1, 0, n * n, n + 1);
    x.indices.erase(b, 1).erase(a, 1) += c;
    return take_diagonals(e, std::move(x), k);
  }
  return x;
}

/// Size of every index; throws if operands differ. Dims of size 1 broadcast, as in PyTorch.
class Sizes {
 public:
  Sizes(const Equation& e, const std::vector<Term>& terms) {
    for (size_t k = 0; k < terms.size(); ++k) {
      for (size_t d = 0; d < terms[k].indices.size(); ++d) {
        const char c = terms[k].indices[d];
        const Extent own{terms[k].t.size(static_cast<int64_t>(d)), k};
        Extent& known = known_.try_emplace(c, own).first->second;
        check_sizes(known.size == 1 || own.size == 1 || own.size == known.size, e, c, known, own);
        if (known.size == 1) known = own;
      }
    }
  }
  int64_t operator[](char c) const { return known_.at(c).size; }
  IntList of(std::string_view indices) const {
    IntList sizes;
    for (char c : indices) sizes.push_back((*this)[c]);
    return sizes;
  }
  int64_t product(std::string_view indices) const { return numel_of(of(indices), "einsum"); }

 private:
  std::map<char, Extent> known_;
};

/// Drops dims of size 1 that broadcast: an operand does not depend on an index that it lacks.
void drop_broadcast(Term& x, const Sizes& sizes) {
  for (size_t d = x.indices.size(); d-- > 0;) {
    const auto dim = static_cast<int64_t>(d);
    if (x.t.size(dim) == sizes[x.indices[d]]) continue;
    x.t = x.t.squeeze(dim);
    x.indices.erase(d, 1);
  }
}

/// The dims of `indices`, in that order.
IntList dims_of(const Term& x, const Indices& indices) {
  IntList dims;
  for (char c : indices) dims.push_back(static_cast<int64_t>(x.indices.find(c)));
  return dims;
}

/// Sums over the dims whose indices are not needed.
void sum_out(Term& x, const Indices& needed) {
  Indices kept, rest;
  for (char c : x.indices) (has(needed, c) ? kept : rest) += c;
  if (rest.empty()) return;
  x.t = sum(x.t, dims_of(x, rest)).to(x.t.dtype());
  x.indices = kept;
}

Tensor in_order(const Term& x, const Indices& order) {
  return x.indices == order ? x.t : x.t.permute(dims_of(x, order));
}

// --- products ------------------------------------------------------------------------------------

/// a * b as [batch, only_a, only_b], by broadcasting.
Tensor outer_product(const Term& a, const Term& b, const Indices& batch, const Indices& only_a,
                     const Indices& only_b) {
  Tensor x = in_order(a, batch + only_a), y = in_order(b, batch + only_b);
  for (size_t i = 0; i < only_b.size(); ++i) x = x.unsqueeze(-1);
  for (size_t i = 0; i < only_a.size(); ++i) y = y.unsqueeze(static_cast<int64_t>(batch.size()));
  return mul(x, y);
}

/// The same summed over `summed`, by matmul.
Tensor inner_product(const Term& a, const Term& b, const Indices& batch, const Indices& only_a,
                     const Indices& only_b, const Indices& summed, const Sizes& sizes) {
  const int64_t m = sizes.product(only_a), n = sizes.product(only_b), k = sizes.product(summed);
  IntList left{m, k}, right{k, n};
  if (!batch.empty()) {
    left.insert(0, sizes.product(batch));
    right.insert(0, sizes.product(batch));
  }
  const Tensor x = in_sizes(in_order(a, batch + only_a + summed), left);
  const Tensor y = in_sizes(in_order(b, batch + summed + only_b), right);
  return matmul(x, y).reshape(sizes.of(batch + only_a + only_b));
}

Term product(Term a, Term b, const Indices& needed, const Sizes& sizes, const std::string& text) {
  sum_out(a, needed + b.indices);
  sum_out(b, needed + a.indices);
  Indices batch, summed, only_a, only_b;
  for (char c : a.indices) (!has(b.indices, c) ? only_a : has(needed, c) ? batch : summed) += c;
  for (char c : b.indices) {
    if (!has(a.indices, c)) only_b += c;
  }
  const Indices all = batch + only_a + only_b;
  BRRR_CHECK(all.size() <= kMaxDims,
             "einsum: a product in \"{}\" has {} dims, at most {} are possible; order the operands "
             "so that indices are summed sooner",
             text, all.size(), kMaxDims);
  // Without sums, or for a batch of dot products, multiply and sum. Not in 16-bit floats, whose
  // products would be rounded before they are added.
  const bool exact = a.t.dtype() == kFloat32 || a.t.dtype() == kFloat64;
  if (summed.empty() || (all == batch && !batch.empty() && exact)) {
    const Indices both = batch + summed;
    Term p{outer_product(a, b, both, only_a, only_b), both + only_a + only_b};
    sum_out(p, all);
    return p;
  }
  return {inner_product(a, b, batch, only_a, only_b, summed, sizes), all};
}

void check_operands(const Equation& e, const std::vector<Tensor>& operands) {
  BRRR_CHECK(e.inputs.size() == operands.size(),
             "einsum: \"{}\" has {} terms for {} operands; write one for each", e.text,
             e.inputs.size(), operands.size());
  for (size_t k = 0; k < operands.size(); ++k) {
    BRRR_CHECK(operands[k].defined(), "einsum: operand {} is undefined; assign it first", k);
    BRRR_CHECK(operands[k].dtype() == operands[0].dtype() && operands[k].dtype() != kBool,
               "einsum: takes operands of one dtype, not bool; operand 0 is {}, operand {} is {}; "
               "convert with to(dtype)",
               describe(operands[0].impl()), k, describe(operands[k].impl()));
  }
}

}  // namespace

Tensor einsum(const std::string& equation, const std::vector<Tensor>& given) {
  BRRR_CHECK(!given.empty(), "einsum: the list of operands is empty");
  std::vector<Tensor> operands;
  for (const Tensor& t : given) operands.push_back(autocast_operand(t));
  Equation e = read_equation(equation);
  check_operands(e, operands);
  name_ellipses(e, operands);
  check_output(e);
  std::vector<Term> terms;
  for (size_t k = 0; k < operands.size(); ++k) {
    terms.push_back(take_diagonals(e, {operands[k], e.inputs[k]}, k));
  }
  const Sizes sizes(e, terms);
  for (Term& x : terms) drop_broadcast(x, sizes);
  Term result = terms[0];
  for (size_t k = 1; k < terms.size(); ++k) {
    Indices needed = e.output;
    for (size_t later = k + 1; later < terms.size(); ++later) needed += terms[later].indices;
    result = product(std::move(result), terms[k], needed, sizes, equation);
  }
  sum_out(result, e.output);
  const Tensor y = in_order(result, e.output);
  return terms.size() > 1 ? sole_view(y) : y;  // A view of a single operand is allowed.
}

}  // namespace brrr
