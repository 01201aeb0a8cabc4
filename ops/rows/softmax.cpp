// Softmax and its logarithm over the last dim; another dim is permuted there and back.
#include "ops/kinds/row.h"
#include "ops/nn_ops.h"
#include "ops/rows/library_kernels.h"

namespace brrr {

namespace {

const RowOp softmax_row{"softmax", "exp(x - max) / sum",
                        [](auto x) {
                          auto e = m::exp(x - m::constant(row::max(x)));
                          return e * (1.0 / row::sum(e));
                        },
                        [](auto, auto y, auto g) { return y * (g - row::sum(g * y)); }};

const RowOp log_softmax_row{"log_softmax", "x - max - log(sum(exp(x - max)))",
                            [](auto x) {
                              auto d = x - m::constant(row::max(x));
                              return d - m::log(row::sum(m::exp(d)));
                            },
                            [](auto, auto y, auto g) { return g - m::exp(y) * row::sum(g); }};

Tensor call_over(const RowOp& op, const Tensor& x, int64_t dim) {
  const int d = dim_arg(op.name, x, dim);
  check_floating(op.name, *x.impl());  // Here, so that an error shows the user's shape.
  return over_dim(x, d, op);
}

}  // namespace

Tensor softmax(const Tensor& x, int64_t dim) { return call_over(softmax_row, x, dim); }
Tensor log_softmax(const Tensor& x, int64_t dim) { return call_over(log_softmax_row, x, dim); }
Tensor Tensor::softmax(int64_t dim) const { return brrr::softmax(*this, dim); }
Tensor Tensor::log_softmax(int64_t dim) const { return brrr::log_softmax(*this, dim); }

}  // namespace brrr
