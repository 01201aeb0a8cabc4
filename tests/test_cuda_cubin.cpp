// The registry's rows, in every dtype that they have loops for, become kernels that compile for
// every architecture of real GPUs; no GPU is needed. Long tests compile all of them; short tests
// one of a pointwise row's seven layouts, for a third of its dtypes, each for one architecture, and
// one in 16 of a reduction's pairs of kernel and architecture. (Kernels given as text are compiled
// where tests run them: see compile_what_ran.)

#include <array>

#include "ops/kinds/reduction.h"
#include "tests/cuda_cases.h"

using namespace brrr;
using namespace brrr::test;
using namespace brrr::cuda;

namespace {

// A row's kernels for operands of dtype t, indexed by layout.
std::array<std::vector<cuda::PointwiseCall>, 7> calls_of(const OpDef& op, DType t) {
  using W = program::Window;
  const Tensors in = operands_of(op, {16}, t);
  KernelsNeeded needed;
  run_row(op, in);
  std::array<std::vector<cuda::PointwiseCall>, 7> all;
  for (const cuda::PointwiseCall& dense : needed.calls) {
    const int vector = dense.walk.vector;
    // Window k is accessed in way k of `ways`, cyclically.
    const auto add = [&](size_t layout, const program::Walk& walk, std::vector<W::Reach> ways) {
      cuda::PointwiseCall c = dense;
      c.walk = walk;
      for (int k = 0; k < c.n_windows; ++k) {
        W& w = c.windows[k];
        w.reach = ways[static_cast<size_t>(k) % ways.size()];
        const bool written = w.stored && (w.reach == W::Held || w.reach == W::Turned);
        if (written || k > 4) w.reach = ways[0];  // At most four tiles.
      }
      all[layout].push_back(c);
    };
    all[0].push_back(dense);
    add(1, {}, {W::Dense});
    add(2, {.ndim = 3, .in_rows = true}, {W::Strided});
    add(3, {.ndim = 3, .in_rows = true, .wide = true}, {W::Strided});
    add(4, {.ndim = 2, .vector = vector, .in_rows = true}, {W::Dense, W::Row, W::Held, W::Strided});
    add(5, {.ndim = 2, .vector = vector}, {W::Dense, W::Strided});
    add(6, {.ndim = 3, .turned = 0}, {W::Strided, W::Turned});
  }
  return all;
}

bool have_compiler() {
  if (gpu_compiler()) return true;
  std::printf("skipped: no device compiler, the module brrr_cuda is not built\n");
  return false;
}

void check_compiles(const std::vector<KernelText>& kernels, int major) {
  const std::string failures = compile_failures(kernels, major);
  CHECK_MESSAGE(failures.empty(), failures);
}

constexpr DType kDTypes[] = {kFloat32, kFloat64, kBFloat16, kFloat16,
                             kInt64,   kInt32,   kUInt8,    kBool};

}  // namespace

TEST_CASE("cuda cubin: every pointwise row compiles for every architecture") {
  if (!have_compiler()) return;
  constexpr size_t kCount = std::size(kArchitectures);
  std::vector<cuda::PointwiseCall> chosen[kCount];
  for (size_t d = 0; d < std::size(kDTypes); ++d) {
    const DType t = kDTypes[d];
    size_t row = 0;
    for (const OpDef* op : rows_of(OpKind::Pointwise)) {
      ++row;
      const bool own = is_floating(t) || op->pointwise->loop(kInt64);
      if (!own && !long_tests()) continue;  // Converted to float32.
      const auto calls = calls_of(*op, t);
      for (size_t a = 0; a < kCount; ++a) {
        for (size_t layout = 0; layout < calls.size(); ++layout) {
          // Short tests take one layout per row and a third of the dtypes.
          const bool turn =
              layout == row % calls.size() && (row + d) % 3 == 0 && a == (row + d) / 3 % kCount;
          if (!turn && !long_tests()) continue;
          chosen[a].insert(chosen[a].end(), calls[layout].begin(), calls[layout].end());
        }
      }
    }
  }
  for (size_t a = 0; a < kCount; ++a) check_compiles(kernels_of(chosen[a]), kArchitectures[a]);
}

TEST_CASE("cuda cubin: every reduction row compiles for every architecture") {
  if (!have_compiler()) return;
  constexpr size_t kCount = std::size(kArchitectures);
  std::vector<KernelText> chosen[kCount];
  for (size_t d = 0; d < std::size(kDTypes); ++d) {
    const DType t = kDTypes[d];
    for (const OpDef* op : rows_of(OpKind::Reduction)) {
      if (!error_of([&] { reduce(*op, ones({2}, t), {}, false); }).empty()) continue;
      KernelsNeeded needed;
      for (const IntList& shape : {IntList{7}, {70, 33}, {40, 64}, {3, 1100}, {40000}}) {
        for (int64_t dim : {0, -1}) reduce(*op, ones(shape, t), {dim}, false);
      }
      const auto& all = needed.rows;
      for (size_t i = 0; i < all.size() * kCount; ++i) {
        const size_t a = i % kCount, form = i / kCount;
        if (long_tests() || (form + d + a) % 16 == 0) chosen[a].push_back(all[form]);
      }
    }
  }
  for (size_t a = 0; a < kCount; ++a) check_compiles(chosen[a], kArchitectures[a]);
}

TEST_CASE("cuda cubin: of many kernels the one that fails to compile is named, with its line") {
  if (!have_compiler()) return;
  const auto kernel = [](const char* name, const std::string& body) {
    return KernelText{
        {},
        name,
        0,
        fmt::format("struct P {{ int* x; }};\nKERNEL({}, P, 32) {{\n{}\n}}\n", name, body)};
  };
  const KernelText good = kernel("good", "*p.x = 1;"), bad = kernel("bad", "*p.x = missing;");
  CHECK(compile_failures({good}, 9) == "");
  const std::string words = compile_failures({good, bad}, 9);
  CHECK_MESSAGE(words.find("bad(3): error: identifier \"missing\"") != words.npos, words);
}

TEST_CASE("cuda cubin: a kernel that spills registers or keeps an array in memory is named") {
  if (!have_compiler()) return;
  const auto kernel = [](const char* name, const std::string& threads, const std::string& body) {
    return KernelText{{},
                      name,
                      0,
                      fmt::format("struct P {{ float* x; int* i; long n; }};\n"
                                  "KERNEL({}, P, {}) {{\n{}\n}}\n",
                                  name, threads, body)};
  };
  // 100 dynamically indexed floats; and 200 floats live at once where a thread has 64 registers.
  const KernelText array = kernel("array", "32",
                                  "float a[100];\n"
                                  "for (int k = 0; k < 100; ++k) a[k] = p.x[p.i[k]];\n"
                                  "for (int k = 0; k < p.n; ++k) p.x[k] = a[p.i[k] % 100];\n");
  const KernelText spill = kernel("spill", "1024",
                                  "float a[200];\n"
                                  "#pragma unroll\n"
                                  "for (int k = 0; k < 200; ++k) a[k] = p.x[k * p.n];\n"
                                  "__syncthreads();\n"
                                  "#pragma unroll\n"
                                  "for (int k = 0; k < 200; ++k) p.x[k] = a[199 - k];\n");
  for (int major : kArchitectures) {
    const std::string words = compile_failures({array, spill}, major);
    CAPTURE(words);
    CHECK(words.find("array_0 takes 4") == 0);
    CHECK(words.find("\nspill_1 takes ") != words.npos);
    CHECK(words.find(fmt::format("compute capability {}.0", major)) != words.npos);
  }
  const KernelText shared = kernel("shared", "32",
                                   "__shared__ float a[12289];\n"
                                   "a[p.i[threadIdx.x]] = p.x[0]; __syncthreads();\n"
                                   "p.x[threadIdx.x] = a[p.i[0]];\n");
  const std::string words = compile_failures({shared}, 8);
  CHECK_MESSAGE(words.find("'shared_0' uses too much shared data") != words.npos, words);
}
