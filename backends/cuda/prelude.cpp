#include "backends/cuda/kernels.h"

namespace brrr::cuda {

const std::string& prelude() {
  static const std::string text =
#include "cuda_prelude.inc"
      ;
  return text;
}

}  // namespace brrr::cuda
