// The module's one exported function.

#include "backends/cuda/module/module.h"

namespace brrr::cuda {

namespace {

constexpr Tools tools{.compile = compile,
                      .release_image = release_image,
                      .compiler_version = compiler_version,
                      .choose = choose,
                      .multiply = multiply,
                      .release_gemm = release_gemm};

constexpr Boundary boundary{.abi = kAbi, .name = "cuda", .driver = &driver, .tools = &tools};

}  // namespace

}  // namespace brrr::cuda

extern "C" [[gnu::visibility("default")]] const brrr::cuda::Boundary* brrr_cuda_boundary() {
  return &brrr::cuda::boundary;
}
