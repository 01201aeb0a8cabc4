// Every kernel that the registry's rows can become is compiled for real GPUs, which needs none.
// (Kernels given as text are compiled where tests run them: see have_device.)

#include <atomic>
#include <chrono>
#include <mutex>
#include <set>
#include <thread>

#include "ops/reduction.h"
#include "tests/cuda_cases.h"

using namespace brrr;
using namespace brrr::test;
using namespace brrr::cuda;

namespace {

// A row's kernels for operands of dtype t: 16 bytes an access; an element an access, and by strides
// with element numbers of 32 and 64 bits, one of which in turn but for long tests.
void add_forms(std::vector<PointwiseForm>& all, const OpDef& op, DType t, size_t turn) {
  std::vector<PointwiseForm> dense;
  {
    const NoGradGuard guard;
    FormsNeeded needed;
    run_row(op, operands_of(op, {16}, t));
    dense = needed.forms;
  }
  for (PointwiseForm f : dense) {
    all.push_back(f);
    f.vector = 1;
    if (long_tests() || turn % 3 == 0) all.push_back(f);
    std::fill_n(f.reach, f.count(), PointwiseForm::Strided);
    f.ndim = 3;
    if (long_tests() || turn % 3 == 1) all.push_back(f);
    f.wide = true;
    if (long_tests() || turn % 3 == 2) all.push_back(f);
  }
}

struct Job {
  std::vector<KernelText> kernels;
  int major;
};

// Kernels as programs of many.
void add_jobs(std::vector<Job>& jobs, const std::vector<KernelText>& kernels, int major) {
  constexpr size_t kMany = 48;
  for (size_t at = 0; at < kernels.size(); at += kMany) {
    const auto first = kernels.begin() + static_cast<long>(at);
    const auto n = static_cast<long>(std::min(kMany, kernels.size() - at));
    jobs.push_back({{first, first + n}, major});
  }
}

// On all cores.
void run_jobs(const std::vector<Job>& jobs) {
  const auto start = std::chrono::steady_clock::now();
  std::atomic<size_t> next = 0, kernels = 0;
  std::mutex mutex;
  std::string failures;
  auto work = [&] {
    for (size_t i; (i = next.fetch_add(1)) < jobs.size();) {
      const std::string failure = compile_failure(jobs[i].kernels, jobs[i].major);
      kernels += jobs[i].kernels.size();
      const std::lock_guard lock(mutex);
      if (!failure.empty()) failures += failure + '\n';
    }
  };
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < std::max(1u, std::thread::hardware_concurrency()); ++i) {
    threads.emplace_back(work);
  }
  for (std::thread& t : threads) t.join();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  MESSAGE(kernels.load(), " kernels in ", jobs.size(), " programs: ", took.count(), " s");
  CHECK_MESSAGE(failures.empty(), failures);
}

bool have_compiler() {
  if (gpu_compiler()) return true;
  std::printf("skipped: no device compiler, the module brrr_cuda is not built\n");
  return false;
}

// One architecture sees everything; the others what differs between dtypes, all in long tests.
bool sampled_out(int major, DType t) {
  return major != 9 && !long_tests() && t != kFloat32;
}

constexpr DType kDTypes[] = {kFloat32, kFloat64, kBFloat16, kFloat16,
                             kInt64,   kInt32,   kUInt8,    kBool};

}  // namespace

TEST_CASE("cuda cubin: every pointwise row compiles for every architecture") {
  if (!have_compiler()) return;
  std::vector<Job> jobs;
  for (DType t : kDTypes) {
    std::vector<PointwiseForm> forms;
    size_t turn = static_cast<size_t>(t);
    for (const OpDef* op : rows_of(OpKind::Pointwise)) {
      const bool own = is_floating(t) || op->pointwise->loops[compute_index(kInt64)];
      if (!own && !long_tests()) continue;  // Integers become float32.
      add_forms(forms, *op, t, turn++);
    }
    for (int major : kArchitectures) {
      if (!sampled_out(major, t)) add_jobs(jobs, kernels_of(forms), major);
    }
  }
  run_jobs(jobs);
}

TEST_CASE("cuda cubin: every reduction row compiles for every architecture") {
  if (!have_compiler()) return;
  std::vector<Job> jobs;
  for (DType t : kDTypes) {
    std::vector<KernelText> kernels;
    for (const OpDef* op : rows_of(OpKind::Reduction)) {
      if (!error_of([&] { reduce(*op, ones({2}, t), {}, false); }).empty()) continue;
      const auto all = reduction_kernels(*op, t);
      kernels.insert(kernels.end(), all.begin(), all.end());
    }
    for (int major : kArchitectures) {
      if (!sampled_out(major, t)) add_jobs(jobs, kernels, major);
    }
  }
  run_jobs(jobs);
}
