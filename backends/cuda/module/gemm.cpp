// Matrix products by cublasLt, with one algorithm per shape.
//
// cublasLt is column-major and so sees a row-major matrix as its transpose. It therefore computes
// c^T = op(b)^T op(a)^T: the factors swap places, and each keeps its transpose flag.

#include <limits>
#include <memory>
#include <utility>

#include "backends/cuda/module/module.h"

namespace brrr::cuda {

namespace {

struct Types {
  cudaDataType_t data;
  cublasComputeType_t compute;
  cudaDataType_t scale;
};

Types types_of(const GemmShape& shape) {
  if (shape.type == GemmShape::Float64) return {CUDA_R_64F, CUBLAS_COMPUTE_64F, CUDA_R_64F};
  if (shape.type == GemmShape::BFloat16) return {CUDA_R_16BF, CUBLAS_COMPUTE_32F, CUDA_R_32F};
  if (shape.type == GemmShape::Float16) return {CUDA_R_16F, CUBLAS_COMPUTE_32F, CUDA_R_32F};
  return {CUDA_R_32F, shape.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F};
}

// One handle for all threads of the process. Never destroyed: at process exit the driver may shut
// down first.
cublasLtHandle_t library() {
  static const cublasLtHandle_t handle = [] {
    cublasLtHandle_t made = nullptr;
    BRRR_CALL(cublasLtCreate, &made);
    return made;
  }();
  return handle;
}

void set(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t which, bool transposed) {
  const cublasOperation_t value = transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
  BRRR_CALL(cublasLtMatmulDescSetAttribute, operation, which, &value, sizeof value);
}

// The layout of `batch` row-major matrices, stored as columns x rows where they are transposed.
void describe(cublasLtMatrixLayout_t layout, cudaDataType_t type, int64_t rows, int64_t columns,
              bool transposed, int64_t ld, int64_t batch, int64_t stride) {
  if (transposed) std::swap(rows, columns);
  BRRR_CALL(cublasLtMatrixLayoutInit, layout, type, columns, rows, ld);
  const int32_t count = static_cast<int32_t>(batch);
  BRRR_CALL(cublasLtMatrixLayoutSetAttribute, layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count,
            sizeof count);
  BRRR_CALL(cublasLtMatrixLayoutSetAttribute, layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
            &stride, sizeof stride);
}

cublasLtMatmulPreferenceOpaque_t make_preference(size_t workspace_bytes) {
  cublasLtMatmulPreferenceOpaque_t preference{};
  BRRR_CALL(cublasLtMatmulPreferenceInit, &preference);
  auto set = [&](cublasLtMatmulPreferenceAttributes_t which, auto value) {
    BRRR_CALL(cublasLtMatmulPreferenceSetAttribute, &preference, which, &value, sizeof value);
  };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(workspace_bytes));
  // Split-k partial sums are kept in the accumulation type and added by a separate step in a fixed
  // order; the other reduction schemes add in the output's type, which may be narrower.
  set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  for (auto which :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    set(which, static_cast<uint32_t>(kGemmAlignment));
  }
  return preference;
}

bool aligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % kGemmAlignment == 0; }

}  // namespace

struct Gemm {
  bool wide;  // Its scale is a double.
  cublasLtMatmulDescOpaque_t operation;
  cublasLtMatrixLayoutOpaque_t a, b, c;
  cublasLtMatmulAlgo_t algorithm;
  size_t workspace_bytes;
};

Failure choose(const GemmShape* shape, size_t workspace_bytes, Gemm** gemm) {
  return on_device([&] {
    const GemmShape& s = *shape;
    if (s.batch > std::numeric_limits<int32_t>::max()) fail("{} products in one call", s.batch);
    const Types types = types_of(s);
    auto made = std::make_unique<Gemm>();
    made->wide = types.scale == CUDA_R_64F;
    BRRR_CALL(cublasLtMatmulDescInit, &made->operation, types.compute, types.scale);
    set(&made->operation, CUBLASLT_MATMUL_DESC_TRANSA, s.trans_b);
    set(&made->operation, CUBLASLT_MATMUL_DESC_TRANSB, s.trans_a);
    describe(&made->a, types.data, s.m, s.k, s.trans_a, s.lda, s.batch, s.stride_a);
    describe(&made->b, types.data, s.k, s.n, s.trans_b, s.ldb, s.batch, s.stride_b);
    describe(&made->c, types.data, s.m, s.n, false, s.ldc, s.batch, s.stride_c);
    auto preference = make_preference(workspace_bytes);
    cublasLtMatmulHeuristicResult_t best{};
    int found = 0;
    const cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(library(), &made->operation, &made->b, &made->a, &made->c,
                                       &made->c, &preference, 1, &best, &found);
    if (status != CUBLAS_STATUS_SUCCESS || found == 0) {
      fail(
          "no algorithm of cublasLt multiplies {} times {}x{}{} by {}x{}{} (leading dimensions "
          "{}, {}, {}) in {} bytes of workspace: {}",
          s.batch, s.m, s.k, s.trans_a ? " (transposed)" : "", s.k, s.n,
          s.trans_b ? " (transposed)" : "", s.lda, s.ldb, s.ldc, workspace_bytes,
          cublasLtGetStatusString(status));
    }
    made->algorithm = best.algo;
    made->workspace_bytes = best.workspaceSize;
    *gemm = made.release();
  });
}

Failure multiply(Gemm* gemm, const void* a, const void* b, void* c, void* workspace,
                 size_t workspace_bytes, Stream* s) {
  return in_stream(s, [&](cudaStream_t stream) {
    if (!aligned(a) || !aligned(b) || !aligned(c)) {
      fail("a matrix of a product is not aligned to {} bytes; copy it first", kGemmAlignment);
    }
    if (workspace_bytes < gemm->workspace_bytes) {
      fail("a workspace of {} bytes, where the algorithm of this product needs {}", workspace_bytes,
           gemm->workspace_bytes);
    }
    static constexpr float one = 1, zero = 0;
    static constexpr double one64 = 1, zero64 = 0;
    BRRR_CALL(cublasLtMatmul, library(), &gemm->operation,
              gemm->wide ? static_cast<const void*>(&one64) : &one, b, &gemm->b, a, &gemm->a,
              gemm->wide ? static_cast<const void*>(&zero64) : &zero, c, &gemm->c, c, &gemm->c,
              &gemm->algorithm, workspace, workspace_bytes, stream);
  });
}

}  // namespace brrr::cuda
