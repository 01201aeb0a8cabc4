// Every reduction row of the registry, none by name, on the device: values against the oracle, the
// boundaries of chunks, layouts, special values, and the order in which blocks and threads run.

#include "tests/cuda_cases.h"
#include "tests/reduction_cases.h"

using namespace brrr;
using namespace brrr::test;

namespace {

constexpr DType kDTypes[] = {kFloat32, kFloat64, kBFloat16, kFloat16,
                             kInt64,   kInt32,   kUInt8,    kBool};

// Sizes around a warp, a warp's row, a chunk of a row, a block of rows, and several such blocks.
const std::vector<IntList> kEnds = {
    {31},        {32},       {33},      {1023},     {1024},    {1025},     {16383},   {16384},
    {16385},     {40000},    {3, 1025}, {2, 16385}, {255, 3},  {256, 3},   {257, 33}, {600, 64},
    {2, 300, 5}, {66000, 2}, {1, 1},    {9, 1, 2},  {8, 9000}, {140, 8200}};

// Builds together the device's kernels that a row needs for these shapes; false where the row does
// not take the dtype.
bool prepare(const OpDef& op, DType t, const std::vector<IntList>& shapes) {
  if (!has_kernel(op, t)) return false;
  KernelsNeeded needed;
  for (const IntList& shape : shapes) {
    const Tensor x = zeros(shape, t);
    for (const IntList& dims : dims_of(shape.size())) {
      (void)error_of([&] { reduce(op, x, dims, false); });
    }
  }
  if (!needed.rows.empty()) build_all(needed.rows);
  return true;
}

void check_shape(const OpDef& op, DType t, const IntList& shape) {
  const Tensor x = values_for(shape, t), moved = on_gpu(x);
  for (const IntList& dims : dims_of(shape.size())) {
    const Tensor y = reduce(op, moved, dims, false);
    CHECK(y.device() == kCUDA);
    if (itemsize(t) == 2) {  // Equal to float32's result, rounded at the end.
      check_same(on_cpu(y), on_cpu(reduce(op, moved.to(kFloat32), dims, false).to(y.dtype())));
    } else if (is_floating(t)) {
      check_reduced(on_cpu(y), op, x, dims, false);
    } else {  // Exact in any order, also where integers wrap around.
      check_same(on_cpu(y), reduce(op, x, dims, false));
    }
  }
}

}  // namespace

TEST_CASE("cuda: reduction rows agree with the oracle") {
  if (!have_device()) return;
  for (const OpDef* op : rows_of(OpKind::Reduction)) {
    CAPTURE(std::string(op->name));
    for (DType t : kDTypes) {
      const std::vector<IntList> few = {{}, {9}, {2, 3, 5}, {3, 1, 4}, {70, 33}, {5, 1100}};
      const std::vector<IntList> all(std::begin(kShapes), std::end(kShapes));
      if (!is_turn(*op, t, {kFloat32, kInt64})) continue;
      const std::vector<IntList>& shapes = long_tests() ? all : few;
      if (!prepare(*op, t, shapes)) continue;
      CAPTURE(std::string(name(t)));
      for (const IntList& shape : shapes) check_shape(*op, t, shape);
    }
  }
}

TEST_CASE("cuda: reduction rows at the ends of warps, chunks and blocks of rows") {
  if (!have_device()) return;
  for (const OpDef* op : rows_of(OpKind::Reduction)) {
    CAPTURE(std::string(op->name));
    for (DType t : {kFloat32, kInt64}) {
      if (!is_turn(*op, t, {kFloat32}) || !prepare(*op, t, kEnds)) continue;
      for (const IntList& shape : kEnds) check_shape(*op, t, shape);
    }
  }
}

TEST_CASE("cuda: reduction rows of no elements, and errors") {
  if (!have_device()) return;
  for (const OpDef* op : rows_of(OpKind::Reduction)) {
    CAPTURE(std::string(op->name));
    const Tensor x = zeros({2, 0, 3}), moved = on_gpu(x);
    CHECK(reduce(*op, moved, {0}, false).sizes() == IntList{0, 3});
    CHECK(!error_of([&] { reduce(*op, moved, {3}, false); }).empty());
    for (const IntList& dims : {IntList{1}, IntList{}}) {
      const std::string error = error_of([&] { reduce(*op, x, dims, false); });
      CHECK(error_of([&] { reduce(*op, moved, dims, false); }) == error);
      if (error.empty()) {
        check_same(on_cpu(reduce(*op, moved, dims, true)), reduce(*op, x, dims, true));
      }
    }
  }
}

TEST_CASE("cuda: reduction rows with NaN, infinities and zeros in any place") {
  if (!have_device()) return;
  for (const OpDef* op : rows_of(OpKind::Reduction)) {
    CAPTURE(std::string(op->name));
    for (DType t : {kFloat32, kFloat64}) {
      if (!is_turn(*op, t, {kFloat32})) continue;
      prepare(*op, t, {{3}, {33}, {200}, {1100}, {3, 3}, {33, 3}, {200, 3}, {1100, 3}});
      for (int64_t n : {3, 33, 200, 1100}) {
        for (double special : {std::nan(""), kInf, -kInf, 0.0}) {
          for (int64_t at : {int64_t{0}, n / 2, n - 1}) {
            // A long product of other values would overflow.
            const Tensor x = n > 1000 ? ones({n, 3}, t) : values_for({n, 3}, t);
            x.select(0, at).fill_(special);
            if (at > 0 && special == kInf) x.select(0, 0).fill_(-special);
            const Tensor moved = on_gpu(x), rows = on_gpu(x.t().contiguous());
            check_reduced(on_cpu(reduce(*op, moved, {0}, false)), *op, x, {0}, false);
            check_reduced(on_cpu(reduce(*op, rows, {1}, false)), *op, x.t(), {1}, false);
          }
        }
      }
    }
  }
}

TEST_CASE("cuda: reduction rows: layouts do not change a bit") {
  if (!have_device()) return;
  for (const OpDef* op : rows_of(OpKind::Reduction)) {
    CAPTURE(std::string(op->name));
    for (DType t : {kFloat32, kBFloat16, kInt64, kUInt8}) {
      std::vector<IntList> shapes = {{5000}, {130, 60}, {3, 1100}, {7, 33}, {5, 70, 18}};
      if (!long_tests()) shapes.resize(3);
      if (!is_turn(*op, t, {kFloat32}) || !prepare(*op, t, shapes)) continue;
      for (const IntList& shape : shapes) {
        const Tensor x = values_for(shape, t);
        const Tensors layouts = {on_gpu(reversed(x)), on_gpu(with_gaps(x))};
        for (const IntList& dims : dims_of(shape.size())) {
          const Tensor y = on_cpu(reduce(*op, on_gpu(x), dims, false));
          for (const Tensor& other : layouts)
            check_same(on_cpu(reduce(*op, other, dims, false)), y);
        }
      }
      const Tensor wide = on_gpu(values_for({1, 67}, t)).expand({40, 67});
      for (const IntList& dims : dims_of(2)) {
        check_same(on_cpu(reduce(*op, wide, dims, true)),
                   on_cpu(reduce(*op, wide.clone(), dims, true)));
      }
    }
  }
}

TEST_CASE("cuda: reduction rows: the order of blocks and threads does not change a bit") {
  if (!have_device()) return;
  const std::vector<IntList> shapes = {{40, 30}, {3, 1100}, {600, 40}, {40000}, {3, 70, 5}};
  for (const OpDef* op : rows_of(OpKind::Reduction)) prepare(*op, kFloat32, shapes);
  std::vector<Tensors> want;
  for (const char* seed : {"0", "1", "2", "77"}) {
    const EmulatorSetting order("BRRR_EMULATOR_ORDER", seed);
    Tensors got;
    for (const OpDef* op : rows_of(OpKind::Reduction)) {
      for (const IntList& shape : shapes) {
        const Tensor x = on_gpu(values_for(shape, kFloat32));
        for (const IntList& dims : dims_of(shape.size())) {
          got.push_back(on_cpu(reduce(*op, x, dims, false)));
        }
      }
    }
    if (want.empty()) want.push_back(got);
    check_same(got, want[0]);
  }
}
