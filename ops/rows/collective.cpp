// Rows between processes: sums, parts and copies over all ranks.
#include <array>
#include <string_view>

#include "core/check.h"
#include "core/context.h"
#include "ops/dist.h"
#include "ops/dist_ops.h"
#include "ops/factory_ops.h"
#include "ops/kinds/composite.h"
#include "ops/kinds/device_exchange.h"
#include "ops/kinds/row_kernel.h"
#include "ops/rows/library_kernels.h"
#include "ops/pointwise_ops.h"

namespace brrr::dist {

namespace {

std::string words(const OpCall& c) {
  return fmt::format("{} of {}", c.op->name, describe(c.in[0]));
}

// Whether the call's tensors are on GPUs that send to each other.
bool between_gpus(const OpCall& c) { return c.in[0]->device != kCPU && gpus_linked(); }

// A tensor's elements as dense memory: its own, or a copy.
Span span_of(const DenseInput& dense, const TensorImpl& x) {
  return {const_cast<char*>(dense.as<char>()), x.numel};
}

// The same on the host, in pinned memory if they come from a GPU. A result is written from there by
// give_back().
class OnHost : NotCopied {
 public:
  explicit OnHost(TensorImpl& x, bool reads = true) : x_(x), dense_(&x, x.dtype) {
    if (x.device == kCPU || x.numel == 0) return;
    refuse_capture("a collective");
    pinned_ = device_link::take_pinned(bytes());
    // Also where nothing is read: what had this memory before may be copied from it still.
    const Point end;
    beside(end, [&] {
      if (reads) device_link::to_pinned(pinned_, dense_.as<char>(), bytes());
    });
    device_link::wait(end.get());
  }
  ~OnHost() {
    if (pinned_) device_link::give_pinned(pinned_);
  }
  void give_back() const {
    if (pinned_) device_link::from_pinned(x_.data(), pinned_, bytes());
  }
  Span span() const { return pinned_ ? Span{pinned_, x_.numel} : span_of(dense_, x_); }

 private:
  size_t bytes() const { return static_cast<size_t>(x_.numel) * itemsize(x_.dtype); }

  TensorImpl& x_;
  const DenseInput dense_;
  char* pinned_ = nullptr;
};

int64_t dense_scratch(const OpCall& c) {
  const TensorImpl& x = *c.in[0];
  return x.contiguous() ? 0 : scratch_for(x.numel, static_cast<int64_t>(itemsize(x.dtype)));
}

// Each rank sends at least its part to every other and takes as much.
Work exchange_work(const OpCall& c) { return {0, operand_bytes(c)}; }

OpSpec collective_spec(void (*infer)(OpCall&), void (*run)(OpCall&),
                       int64_t (*scratch)(const OpCall&), void (*vjp)(VjpCall&)) {
  return {.infer = infer,
          .kernel = {{run}, {run}},
          .scratch = scratch,
          .work = exchange_work,
          .vjp = vjp,
          .reaches_out = true};
}

void check_dims(const OpCall& c) {
  BRRR_CHECK(c.in[0]->ndim > 0, "{}: a tensor without dims has no parts; give it one with view",
             c.op->name);
}

// --- all_reduce ----------------------------------------------------------------------------------

void all_reduce_run(OpCall& c) {
  TensorImpl& out = *c.out[0].impl();
  copy_now(out, *c.in[0]);
  if (size() == 1) return;
  if (between_gpus(c)) return device_all_reduce(words(c), {out.data(), out.numel}, out.dtype);
  const OnHost host(out);
  const auto job = std::make_shared<AllReduceJob>(words(c), Exchange::get().next_tag());
  job->set_row(Row(out.dtype, {host.span()}));
  Exchange::get().run(job);
  host.give_back();
}

void all_reduce_vjp(VjpCall& v) { v.gin[0] = all_reduce(v.gout[0]); }

const OpDef all_reduce_row{"all_reduce", "the sum over all ranks, in rank order",
                           collective_spec(same_infer, all_reduce_run, no_scratch, all_reduce_vjp)};

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
  if (between_gpus(c)) {
    const DenseInput mine(c.in[0], out.dtype);
    return device_all_gather(words(c), span_of(mine, *c.in[0]), out.data(), out.dtype);
  }
  const OnHost mine(*c.in[0]), all(out, false);
  Exchange::get().run(
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
  if (between_gpus(c)) {
    const DenseInput all(c.in[0], out.dtype);
    return device_reduce_scatter(words(c), {out.data(), out.numel}, span_of(all, *c.in[0]).at,
                                 out.dtype);
  }
  const OnHost mine(out, false), all(*c.in[0]);
  Exchange::get().run(reduce_scatter_job(words(c), Exchange::get().next_tag(), mine.span(),
                                         all.span().at, out.dtype));
  mine.give_back();
}

void gather_vjp(VjpCall& v) { v.gin[0] = reduce_scatter(v.gout[0]); }
void scatter_vjp(VjpCall& v) { v.gin[0] = all_gather(v.gout[0]); }

const OpDef all_gather_row{"all_gather", "the tensors of all ranks, one after the other",
                           collective_spec(gather_infer, gather_run, dense_scratch, gather_vjp)};

const OpDef reduce_scatter_row{
    "reduce_scatter", "this rank's part of the sum over all ranks",
    collective_spec(scatter_infer, scatter_run, dense_scratch, scatter_vjp)};

// --- broadcast -----------------------------------------------------------------------------------

struct RootAttrs {
  int64_t rank;
};

void broadcast_run(OpCall& c) {
  TensorImpl& out = *c.out[0].impl();
  const auto root = static_cast<int>(c.attrs.as<RootAttrs>().rank);
  copy_now(out, *c.in[0]);
  if (size() == 1) return;
  const std::string what = fmt::format("{} from rank {}", words(c), root);
  if (between_gpus(c)) return device_broadcast(what, {out.data(), out.numel}, out.dtype, root);
  const OnHost host(out);
  Exchange::get().run(
      broadcast_job(what, Exchange::get().next_tag(), host.span(), out.dtype, root));
  host.give_back();
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
  char mine = 0;
  std::vector<char> all(static_cast<size_t>(size()));
  Exchange::get().run(
      all_gather_job("barrier", Exchange::get().next_tag(), {&mine, 1}, all.data(), kUInt8));
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
  const auto job = broadcast_job(what, Exchange::get().next_tag(),
                                 {failure.data(), static_cast<int64_t>(failure.size())}, kUInt8, 0);
  job->be_patient();
  Exchange::get().run(job);
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
