#include "examples/common/checksum.h"

#include <cstring>

namespace examples {

using brrr::Tensor;

namespace {

struct Bytes {
  Tensor keep;
  const unsigned char* data;
  size_t size;
};
Bytes bytes_of(const Tensor& t) {
  const Tensor host = t.detach().to(brrr::kCPU).contiguous();
  return {host, static_cast<const unsigned char*>(host.data_ptr()),
          static_cast<size_t>(host.numel()) * brrr::itemsize(host.dtype())};
}

}  // namespace

uint64_t checksum(const std::vector<Tensor>& tensors) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const Tensor& t : tensors) {
    const Bytes b = bytes_of(t);
    for (size_t i = 0; i < b.size; ++i) hash = (hash ^ b.data[i]) * 0x100000001b3u;
  }
  return hash;
}

bool same_bits(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    const Bytes x = bytes_of(a[i]), y = bytes_of(b[i]);
    if (x.size != y.size || std::memcmp(x.data, y.data, x.size) != 0) return false;
  }
  return true;
}

}  // namespace examples
