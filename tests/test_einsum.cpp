// einsum against the sum that its equation writes down, and equations and shapes that are wrong.

#include <map>

#include "brrr.h"
#include "tests/op_cases.h"

using namespace brrr;
using namespace brrr::test;

namespace {

/// The nested loops of an explicit equation without ellipsis, in double.
Tensor by_loops(const std::string& equation, const Tensors& in) {
  const size_t arrow = equation.find("->");
  const std::string left = equation.substr(0, arrow), out = equation.substr(arrow + 2);
  std::vector<std::string> terms(1);
  for (char c : left) {
    if (c == ',')
      terms.emplace_back();
    else
      terms.back() += c;
  }
  std::map<char, int64_t> size, at;
  for (size_t k = 0; k < terms.size(); ++k) {
    for (size_t d = 0; d < terms[k].size(); ++d) {
      int64_t& n = size[terms[k][d]];
      n = std::max(n, in[k].size(static_cast<int64_t>(d)));
    }
  }
  IntList sizes;
  for (char c : out) sizes.push_back(size[c]);
  std::vector<double> sums(static_cast<size_t>(numel_of(sizes)));
  std::vector<std::vector<double>> values;
  for (const Tensor& t : in) values.push_back(t.to(kFloat64).to_vector<double>());
  int64_t all = 1;
  for (const auto& [c, n] : size) all *= n;
  for (int64_t i = 0; i < all; ++i) {
    int64_t rest = i;
    for (const auto& [c, n] : size) {
      at[c] = rest % n;
      rest /= n;
    }
    double product = 1;
    for (size_t k = 0; k < terms.size(); ++k) {
      int64_t p = 0;
      for (size_t d = 0; d < terms[k].size(); ++d) {
        const int64_t n = in[k].size(static_cast<int64_t>(d));
        p = p * n + (n == 1 ? 0 : at[terms[k][d]]);
      }
      product *= values[k][static_cast<size_t>(p)];
    }
    int64_t p = 0;
    for (char c : out) p = p * size[c] + at[c];
    sums[static_cast<size_t>(p)] += product;
  }
  return from_blob(static_cast<const void*>(sums.data()), sizes, kFloat64);
}

}  // namespace

TEST_CASE("einsum: equals the sum that the equation writes down") {
  const std::map<char, int64_t> size = {{'b', 2}, {'h', 3}, {'i', 4}, {'j', 5},
                                        {'k', 3}, {'d', 2}, {'A', 2}};
  for (const char* equation : {"i->i",
                               "i->",
                               "ij->ji",
                               "ij->j",
                               "ij->",
                               "ii->i",
                               "ii->",
                               "iij->ji",
                               "iji->j",
                               "iii->i",
                               "bibi->ib",
                               "i,i->",
                               "i,i->i",
                               "i,j->ij",
                               "i,j->ji",
                               "ij,j->i",
                               "ij,ij->",
                               "ij,ij->ij",
                               "ij,ji->ij",
                               "ij,jk->ik",
                               "ij,kj->ki",
                               "ji,jk->ki",
                               "bij,bjk->bik",
                               "bij,kj->bik",
                               "bhid,bhjd->bhij",
                               "bhij,bhjd->bhid",
                               "bhij,bhjd->bihd",
                               "bij,bij->b",
                               "bij,bij->i",
                               "bij,bjd->",
                               "ij,k->i",
                               "ij,jk,kd->id",
                               "i,j,k->kji",
                               "i,i,i->i",
                               "bi,bj,bij->b",
                               "bAi,Aj->bij",
                               "ii,ij->j",
                               "hbi,jk,dh->bikjd"}) {
    CAPTURE(std::string(equation));
    Tensors in;
    IntList sizes;
    for (const char* c = equation;; ++c) {
      if (size.count(*c)) {
        sizes.push_back(size.at(*c));
        continue;
      }
      in.push_back(sampled(sizes, kFloat64, -2, 2, static_cast<int>(in.size())));
      sizes = {};
      if (*c != ',') break;
    }
    const Tensor want = by_loops(equation, in);
    check_close(einsum(equation, in), want, 1e-13);
    for (DType t : {kFloat32, kInt64, kInt32}) {
      Tensors other;
      for (const Tensor& x : in) other.push_back(x.to(t));
      const Tensor y = einsum(equation, other);
      CHECK(y.dtype() == t);
      check_close(y, by_loops(equation, other), 1e-5);
    }
  }
}

TEST_CASE("einsum: implicit outputs, ellipses, stretched dims, blanks") {
  const Tensor a = sampled({3, 4}, kFloat64), b = sampled({4, 5}, kFloat64, -2, 2, 1);
  const Tensor t = sampled({2, 3, 4}, kFloat64), s = sampled({1, 4, 5}, kFloat64);
  check_same(einsum("ij,jk", {a, b}), matmul(a, b));
  check_same(einsum(" i j , j k -> i k ", {a, b}), matmul(a, b));
  check_same(einsum("ba", {a}), a.t());
  check_same(einsum("bA", {a}), a.t());  // Capitals come first.
  check_close(einsum("ii", {a.narrow(1, 0, 3)}), by_loops("ii->", {a.narrow(1, 0, 3)}), 1e-14);
  check_close(einsum("...ij,...jk", {t, b}), matmul(t, b), 1e-13);
  check_close(einsum("...ij,...jk->...ik", {t, s}), matmul(t, s), 1e-13);
  check_close(einsum("...ij,jk->...ki", {t, b}), matmul(t, b).transpose(1, 2), 1e-13);
  check_same(einsum("i...->...i", {t}), t.permute({1, 2, 0}));
  check_close(einsum("...", {t}), t, 0);
  check_close(einsum("...->", {t}), t.sum(), 1e-13);
  check_close(einsum("i...,i...", {t, t}), (t * t).sum({0}), 1e-13);
  const Tensor one = sampled({1, 4}, kFloat64, -2, 2, 3);
  check_close(einsum("ij,ij->ij", {a, one}), a * one, 0);
  check_close(einsum("ij,ij->j", {one, a}), by_loops("ij,ij->j", {one, a}), 1e-14);
  CHECK(einsum("i,j->ij", {zeros({0}), ones({3})}).sizes() == IntList{0, 3});
  check_same(einsum("ij,jk->ik", {ones({2, 0}), ones({0, 3})}), zeros({2, 3}));
  CHECK(einsum("ii->i", {zeros({0, 0})}).sizes() == IntList{0});
  CHECK(einsum(",->", {tensor(2.0), tensor(3.0)}).item<double>() == 6);
}

TEST_CASE("einsum: errors name the index, the operand or what is wrong with the equation") {
  const Tensor a = ones({3, 4}), b = ones({5, 6});
  auto message = [&](const char* equation, const Tensors& in) {
    return error_of([&] { einsum(equation, in); });
  };
  CHECK(message("ij,jk->ik", {a, b}) ==
        "einsum: index 'j' has size 4 in operand 0 and 5 in operand 1 of \"ij,jk->ik\"");
  CHECK(message("ii->i", {a}) ==
        "einsum: index 'i' has size 3 in operand 0 and 4 in operand 0 of \"ii->i\"");
  CHECK(message("jij->i", {ones({2, 3, 4})}).find("index 'j' has size 2 in operand 0 and 4") !=
        std::string::npos);
  CHECK(message("ijj->i", {ones({2, 3, 1})}).find("index 'j' has size 3") != std::string::npos);
  CHECK(message("...i,...i", {a, ones({5, 4})}) ==
        "einsum: a dim of the ellipsis has size 3 in operand 0 and 5 in operand 1 of "
        "\"...i,...i\"");
  CHECK(message("ijk->i", {a}) ==
        "einsum: operand 0 is float32[3, 4], but its term in \"ijk->i\" names 3 dims");
  CHECK(message("...ijk->i", {a}).find("names 3 dims") != std::string::npos);
  CHECK(message("i->i", {a}).find("names 1 dims") != std::string::npos);
  CHECK(message("ij,jk", {a}) ==
        "einsum: \"ij,jk\" has 2 terms for 1 operands; write one for each");
  CHECK(message("ij->ik", {a}) == "einsum: index 'k' in the output of \"ij->ik\" is in no operand");
  CHECK(message("ij->ii", {a}) == "einsum: index 'i' is twice in the output of \"ij->ii\"");
  CHECK(message("i1->i", {a}) ==
        "einsum: '1' in \"i1->i\" is no index; write letters, '...', ',' and one '->'");
  for (const char* bad : {"ij->i->j", "i.j->i", "ij-i", "ij>i", "i..j", "ij->i,j"}) {
    CHECK(message(bad, {a}).find("is no index") != std::string::npos);
  }
  CHECK(message("......", {a}).find("two ellipses") != std::string::npos);
  CHECK(message("", {}).find("einsum: the list of operands is empty") == 0);
  CHECK(message("ij", {Tensor()}).find("einsum: operand 0 is undefined") == 0);
  CHECK(message("i,i", {ones({2}), ones({2}, kFloat64)}).find("einsum: takes operands of one") ==
        0);
  CHECK(message("i", {zeros({2}, kBool)}).find("einsum: takes operands of one dtype") == 0);
  CHECK(message("abcde,fghij->abcdefghij", {ones({1, 1, 1, 1, 1}), ones({1, 1, 1, 1, 1})})
            .find("has 10 dims, at most 8") != std::string::npos);
}
