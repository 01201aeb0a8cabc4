#include "examples/common/checksum.h"

namespace examples {

uint64_t checksum(const std::vector<brrr::Tensor>& tensors) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const brrr::Tensor& t : tensors) {
    for (const char byte : brrr::comparable_bytes(t)) {
      hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001b3u;
    }
  }
  return hash;
}

}  // namespace examples
