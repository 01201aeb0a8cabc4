// Collectives over all ranks: all_reduce, all_gather, reduce_scatter and broadcast.
#include <array>
#include <string_view>
#include <utility>

#include "core/backend.h"
#include "core/check.h"
#include "core/context.h"
#include "ops/dist.h"
#include "ops/dist_ops.h"
#include "ops/factory_ops.h"
#include "ops/kinds/composite.h"
#include "ops/kinds/device_exchange.h"
#include "ops/kinds/row_kernel.h"
#include "ops/rows/library_kernels.h"

namespace brrr::dist {

namespace {

// Sums a row over the ranks on the result's device, or does one half of that, and waits for it.
void exchange(const OpCall& c, const Row& row, Halves halves, const std::string& how = "") {
  if (size() == 1) return;
  const std::string what = fmt::format("{} of {}{}", c.op->name, describe(c.in[0]), how);
  if (c.out[0].device() == kCPU) return exchange(what, row, halves);
  Exchange& e = Exchange::get();
  // Linked GPUs need no tag; a replay takes none either.
  const auto job = std::make_shared<Job>(what, gpus_linked() ? 0 : e.next_tag(), halves);
  DeviceSum sum;
  sum.set_rows({row}, 1, job);
  sum.begin();
  sum.end();
  e.retire(job);
}

Row row_of(const TensorImpl& x, std::vector<const Cuts*> cuts = {}) {
  return Row(x.dtype, {{x.data(), x.numel}}, std::move(cuts));
}

int64_t dense_scratch(const OpCall& c) { return DenseInput::bytes(*c.in[0], c.in[0]->dtype); }

OpSpec collective_spec(void (*infer)(OpCall&), void (*run)(OpCall&),
                       int64_t (*scratch)(const OpCall&), void (*vjp)(VjpCall&)) {
  return {.infer = infer,
          .kernel = {{run}, {run}},
          .scratch = scratch,
          .vjp = vjp,
          .communicates = true};
}

void check_dims(const OpCall& c) {
  BRRR_CHECK(c.in[0]->ndim > 0, "{}: a tensor without dims has no parts; give it one with view",
             c.op->name);
}

void all_reduce_run(OpCall& c) {
  TensorImpl& out = *c.out[0].impl();
  copy_now(out, *c.in[0]);
  exchange(c, row_of(out), Halves::Both);
}

void all_reduce_vjp(VjpCall& v) { v.gin[0] = all_reduce(v.gout[0]); }

const OpDef all_reduce_row{"all_reduce", "the sum over all ranks, in rank order",
                           collective_spec(same_infer, all_reduce_run, no_scratch, all_reduce_vjp)};

void gather_infer(OpCall& c) {
  check_dims(c);
  same_infer(c);
  c.meta[0].sizes[0] *= size();
}

void gather_run(OpCall& c) {
  const TensorImpl &out = *c.out[0].impl(), &mine = *c.in[0];
  copy_into_part(out, mine, 0, rank() * mine.sizes[0]);
  exchange(c, row_of(out), Halves::Share);
}

void scatter_infer(OpCall& c) {
  check_dims(c);
  same_infer(c);
  IntList& sizes = c.meta[0].sizes;
  BRRR_CHECK(sizes[0] % size() == 0,
             "reduce_scatter: {} does not divide among {} ranks along dim 0", to_string(sizes),
             size());
  sizes[0] /= size();
}

// The sum is in place but must not write the operand: the result stands in for this rank's part.
void scatter_run(OpCall& c) {
  const TensorImpl& out = *c.out[0].impl();
  const DenseInput dense(c.in[0], out.dtype);
  const size_t bytes = static_cast<size_t>(out.numel) * itemsize(out.dtype);
  std::vector<Span> parts;
  for (int r = 0; r < size(); ++r) {
    parts.push_back(
        {const_cast<char*>(dense.as<char>()) + static_cast<size_t>(r) * bytes, out.numel});
  }
  char* const mine = std::exchange(parts[static_cast<size_t>(rank())].at, out.data());
  if (bytes) backend(out.device.type).copy(out.data(), mine, bytes);
  exchange(c, Row(out.dtype, std::move(parts)), Halves::Sum);
}

void gather_vjp(VjpCall& v) { v.gin[0] = reduce_scatter(v.gout[0]); }
void scatter_vjp(VjpCall& v) { v.gin[0] = all_gather(v.gout[0]); }

const OpDef all_gather_row{"all_gather", "the tensors of all ranks, concatenated",
                           collective_spec(gather_infer, gather_run, no_scratch, gather_vjp)};

const OpDef reduce_scatter_row{
    "reduce_scatter", "this rank's part of the sum over all ranks",
    collective_spec(scatter_infer, scatter_run, dense_scratch, scatter_vjp)};

struct RootAttrs {
  int64_t rank;
};

void broadcast_run(OpCall& c) {
  TensorImpl& out = *c.out[0].impl();
  const auto root = static_cast<int>(c.attrs.as<RootAttrs>().rank);
  copy_now(out, *c.in[0]);
  const Cuts cuts = owned_by(root, out.numel);
  exchange(c, row_of(out, {&cuts}), Halves::Share, fmt::format(" from rank {}", root));
}

void broadcast_vjp(VjpCall& v) {
  const Tensor sum = all_reduce(v.gout[0]);
  v.gin[0] = v.attrs().as<RootAttrs>().rank == rank() ? sum : zeros_like(sum);
}

const OpDef broadcast_row{"broadcast", "the values of one rank on all",
                          collective_spec(same_infer, broadcast_run, no_scratch, broadcast_vjp)};

}  // namespace

void init() { Exchange::get(); }
int rank() { return Exchange::get().rank(); }
int size() { return Exchange::get().size(); }
void abort(const std::string& why) { Exchange::get().abort(why); }
void set_limit(double seconds) { Exchange::get().set_limit(seconds); }

std::string transport() {
  const Transport* t = Exchange::get().transport();
  return t ? t->version : "";
}

void barrier() {
  check_host_access("barrier", nullptr);
  std::vector<char> all(static_cast<size_t>(size()));
  share("barrier", Row(kUInt8, {{all.data(), size()}}));
}

void on_first_rank(const std::string& what, const std::function<void()>& f) {
  if (size() == 1) return f();
  std::array<char, 1024> failure{};
  if (rank() == 0) {
    try {
      f();
    } catch (const std::exception& e) {
      std::string_view(e.what()).copy(failure.data(), failure.size() - 1);
    }
  }
  const auto n = static_cast<int64_t>(failure.size());
  const Cuts cuts = owned_by(0, n);
  share(what, Row(kUInt8, {{failure.data(), n}}, {&cuts}), true);
  if (failure[0] != 0) throw Error(failure.data());
}

Stats stats() { return Exchange::get().stats(); }

Tensor all_reduce(const Tensor& x) { return call(all_reduce_row, {defined("all_reduce", x)}); }
Tensor all_gather(const Tensor& x) { return call(all_gather_row, {defined("all_gather", x)}); }
Tensor reduce_scatter(const Tensor& x) {
  return call(reduce_scatter_row, {defined("reduce_scatter", x)});
}
Tensor broadcast(const Tensor& x, int root) {
  BRRR_CHECK(root >= 0 && root < size(), "broadcast: there is no rank {} among {}", root, size());
  return call(broadcast_row, {defined("broadcast", x)}, RootAttrs{root});
}

}  // namespace brrr::dist
