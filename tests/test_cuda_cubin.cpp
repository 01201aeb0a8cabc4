// Every kernel that the registry's rows can become is compiled for real GPUs, which needs none.
// (Kernels given as text are compiled where tests run them: see have_device.)

#include <atomic>
#include <chrono>
#include <map>
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
    const Tensors in = operands_of(op, {16}, t);
    FormsNeeded needed;
    run_row(op, in);
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

// Kernels as programs of many, each text once.
std::vector<Job> jobs_of(const std::vector<KernelText>& kernels, int major) {
  constexpr size_t kMany = 48;
  std::vector<Job> jobs;
  std::set<std::string> seen;
  for (const KernelText& k : kernels) {
    if (!seen.insert(k.text).second) continue;
    if (jobs.empty() || jobs.back().kernels.size() == kMany) jobs.push_back({{}, major});
    jobs.back().kernels.push_back(k);
  }
  return jobs;
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

// One architecture sees everything; the others float32, or all in long tests.
void check_compiles(const std::map<DType, std::vector<KernelText>>& kernels) {
  std::vector<Job> jobs;
  for (int major : kArchitectures) {
    std::vector<KernelText> chosen;
    for (const auto& [t, all] : kernels) {
      if (major == 9 || t == kFloat32 || long_tests()) {
        chosen.insert(chosen.end(), all.begin(), all.end());
      }
    }
    const auto more = jobs_of(chosen, major);
    jobs.insert(jobs.end(), more.begin(), more.end());
  }
  run_jobs(jobs);
}

constexpr DType kDTypes[] = {kFloat32, kFloat64, kBFloat16, kFloat16,
                             kInt64,   kInt32,   kUInt8,    kBool};

}  // namespace

TEST_CASE("cuda cubin: every pointwise row compiles for every architecture") {
  if (!have_compiler()) return;
  std::map<DType, std::vector<KernelText>> kernels;
  for (DType t : kDTypes) {
    std::vector<PointwiseForm> forms;
    size_t turn = static_cast<size_t>(t);
    for (const OpDef* op : rows_of(OpKind::Pointwise)) {
      const bool own = is_floating(t) || op->pointwise->loops[compute_index(kInt64)];
      if (own || long_tests()) add_forms(forms, *op, t, turn++);  // Else integers become float32.
    }
    kernels[t] = kernels_of(forms);
  }
  check_compiles(kernels);
}

TEST_CASE("cuda cubin: every reduction row compiles for every architecture") {
  if (!have_compiler()) return;
  std::map<DType, std::vector<KernelText>> kernels;
  for (DType t : kDTypes) {
    for (const OpDef* op : rows_of(OpKind::Reduction)) {
      if (!error_of([&] { reduce(*op, ones({2}, t), {}, false); }).empty()) continue;
      const auto all = reduction_kernels(*op, t);
      kernels[t].insert(kernels[t].end(), all.begin(), all.end());
    }
  }
  check_compiles(kernels);
}
