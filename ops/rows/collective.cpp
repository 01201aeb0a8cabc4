// Rows between processes: sums, parts and copies over all ranks.
#include "core/check.h"
#include "core/context.h"
#include "ops/dist.h"
#include "ops/dist_ops.h"
#include "ops/factory_ops.h"
#include "ops/kinds/composite.h"
#include "ops/kinds/exchange_buckets.h"
#include "ops/rows/library_kernels.h"
#include "ops/pointwise_ops.h"

namespace brrr::dist {

namespace {

std::string words(const OpCall& c) {
  return fmt::format("{} of {}", c.op->name, describe(c.in[0]));
}

// Starts the call's job and waits for it.
void run_job(const std::shared_ptr<Job>& job) {
  Exchange::get().start(job);
  Exchange::get().wait(*job);
  Exchange::get().retire(job);
}

// A tensor's elements as dense memory of the host: its own, or a copy, which a result's
// destination is written from by give_back().
class OnHost {
 public:
  explicit OnHost(TensorImpl& x, bool reads = true) : x_(x) {
    const TensorImpl* from = &x;
    if (!x.contiguous()) {
      dense_ = raw_empty(x.size_list(), x.dtype, x.device);
      copy_now(*dense_.impl(), x);
      from = dense_.impl();
    }
    at_ = from->data();
    if (x.device == kCPU) return;
    bytes_.resize(static_cast<size_t>(x.numel) * itemsize(x.dtype));
    if (reads) backend(x.device).copy_to_host(bytes_.data(), at_, bytes_.size());
    at_ = bytes_.data();
  }
  void give_back() const {
    if (x_.device == kCPU) return;
    backend(x_.device).copy_from_host(x_.data(), bytes_.data(), bytes_.size());
  }
  Span span() const { return {at_, x_.numel}; }

 private:
  TensorImpl& x_;
  Tensor dense_;
  std::vector<char> bytes_;
  char* at_;
};

int64_t dense_scratch(const OpCall& c) {
  const TensorImpl& x = *c.in[0];
  return x.contiguous() ? 0 : scratch_for(x.numel, static_cast<int64_t>(itemsize(x.dtype)));
}

// Each rank sends at least its part to every other and takes as much.
Work exchange_work(const OpCall& c) { return {0, operand_bytes(c)}; }

void check_dims(const OpCall& c) {
  BRRR_CHECK(c.in[0]->ndim > 0, "{}: a tensor without dims has no parts; give it one with view",
             c.op->name);
}

// --- all_reduce ----------------------------------------------------------------------------------

void same_infer(OpCall& c) { set_meta(c, 0, c.in[0]->dtype, c.in[0]->size_list()); }

void all_reduce_run(OpCall& c) {
  TensorImpl& out = *c.out[0].impl();
  copy_now(out, *c.in[0]);
  if (size() == 1) return;
  const OnHost host(out);
  const auto job = std::make_shared<AllReduceJob>(words(c), Exchange::get().next_tag());
  job->set_row(Row(out.dtype, {host.span()}));
  run_job(job);
  host.give_back();
}

void all_reduce_vjp(VjpCall& v) { v.gin[0] = all_reduce(v.gout[0]); }

const OpDef all_reduce_row{"all_reduce",
                           "the sum over all ranks, in rank order",
                           {.infer = same_infer,
                            .kernel = {{all_reduce_run}, {all_reduce_run}},
                            .scratch = no_scratch,
                            .work = exchange_work,
                            .vjp = all_reduce_vjp,
                            .reaches_out = true}};

// --- all_gather, reduce_scatter ------------------------------------------------------------------

void gather_infer(OpCall& c) {
  check_dims(c);
  IntList sizes = c.in[0]->size_list();
  sizes[0] *= size();
  set_meta(c, 0, c.in[0]->dtype, sizes);
}

void gather_run(OpCall& c) {
  TensorImpl& out = *c.out[0].impl();
  if (size() == 1) return copy_now(out, *c.in[0]);
  const OnHost mine(*c.in[0]), all(out, false);
  run_job(
      all_gather_job(words(c), Exchange::get().next_tag(), mine.span(), all.span().at, out.dtype));
  all.give_back();
}

void scatter_infer(OpCall& c) {
  check_dims(c);
  IntList sizes = c.in[0]->size_list();
  BRRR_CHECK(sizes[0] % size() == 0,
             "reduce_scatter: {} does not divide among {} ranks along dim 0", to_string(sizes),
             size());
  sizes[0] /= size();
  set_meta(c, 0, c.in[0]->dtype, sizes);
}

void scatter_run(OpCall& c) {
  TensorImpl& out = *c.out[0].impl();
  if (size() == 1) return copy_now(out, *c.in[0]);
  const OnHost mine(out, false), all(*c.in[0]);
  run_job(reduce_scatter_job(words(c), Exchange::get().next_tag(), mine.span(), all.span().at,
                             out.dtype));
  mine.give_back();
}

void gather_vjp(VjpCall& v) { v.gin[0] = reduce_scatter(v.gout[0]); }
void scatter_vjp(VjpCall& v) { v.gin[0] = all_gather(v.gout[0]); }

const OpDef all_gather_row{"all_gather",
                           "the tensors of all ranks, one after the other",
                           {.infer = gather_infer,
                            .kernel = {{gather_run}, {gather_run}},
                            .scratch = dense_scratch,
                            .work = exchange_work,
                            .vjp = gather_vjp,
                            .reaches_out = true}};

const OpDef reduce_scatter_row{"reduce_scatter",
                               "this rank's part of the sum over all ranks",
                               {.infer = scatter_infer,
                                .kernel = {{scatter_run}, {scatter_run}},
                                .scratch = dense_scratch,
                                .work = exchange_work,
                                .vjp = scatter_vjp,
                                .reaches_out = true}};

// --- broadcast -----------------------------------------------------------------------------------

struct RootAttrs {
  int64_t rank;
};

void broadcast_run(OpCall& c) {
  TensorImpl& out = *c.out[0].impl();
  const auto root = static_cast<int>(c.attrs.as<RootAttrs>().rank);
  copy_now(out, *c.in[0]);
  if (size() == 1) return;
  const OnHost host(out);
  run_job(broadcast_job(fmt::format("{} from rank {}", words(c), root), Exchange::get().next_tag(),
                        host.span(), out.dtype, root));
  host.give_back();
}

void broadcast_vjp(VjpCall& v) {
  const Tensor sum = all_reduce(v.gout[0]);
  v.gin[0] = v.attrs().as<RootAttrs>().rank == rank() ? sum : zeros_like(sum);
}

const OpDef broadcast_row{"broadcast",
                          "the values of one rank on all",
                          {.infer = same_infer,
                           .kernel = {{broadcast_run}, {broadcast_run}},
                           .scratch = no_scratch,
                           .work = exchange_work,
                           .vjp = broadcast_vjp,
                           .reaches_out = true}};

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
  char mine = 0;
  std::vector<char> all(static_cast<size_t>(size()));
  run_job(all_gather_job("barrier", Exchange::get().next_tag(), {&mine, 1}, all.data(), kUInt8));
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
