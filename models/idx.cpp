#include "models/data.h"

#include <algorithm>
#include <filesystem>

#include "core/check.h"
#include "core/context.h"
#include "models/file.h"
#include "ops/pointwise_ops.h"

namespace brrr::data {

namespace {

struct Element {
  uint8_t code;
  const char* name;
  size_t bytes;
  DType dtype;
};
constexpr Element kElements[] = {
    {0x08, "uint8", 1, kUInt8}, {0x09, "int8", 1, kInt32},      {0x0b, "int16", 2, kInt32},
    {0x0c, "int32", 4, kInt32}, {0x0d, "float32", 4, kFloat32}, {0x0e, "float64", 8, kFloat64},
};

// Reverses each element's bytes, in place.
void swap_bytes(char* data, int64_t n, size_t size) {
  if (size == 1) return;
  for (int64_t i = 0; i < n; ++i) std::reverse(data + i * size, data + (i + 1) * size);
}

const Element& element_of(const std::string& path, const unsigned char* magic) {
  BRRR_CHECK(!(magic[0] == 0x1f && magic[1] == 0x8b),
             "read_idx: {} is compressed; run gunzip on it first", path);
  BRRR_CHECK(magic[0] == 0 && magic[1] == 0,
             "read_idx: {} is not an IDX file: it starts with {:02x} {:02x} instead of 00 00", path,
             magic[0], magic[1]);
  for (const Element& e : kElements) {
    if (e.code == magic[2]) return e;
  }
  fail("read_idx: {}: unknown element type {:#04x}; known are 0x08, 0x09 and 0x0b to 0x0e", path,
       magic[2]);
}

}  // namespace

Tensor read_idx(const std::string& path) {
  check_host_access("read_idx", nullptr);
  const InputFile file(path);
  BRRR_CHECK(file.size() >= 4, "read_idx: {} has {} bytes, too few for an IDX file", path,
             file.size());
  unsigned char magic[4];
  file.read(magic, 0, 4);
  const Element& element = element_of(path, magic);
  const int ndim = magic[3];
  BRRR_CHECK(ndim >= 1 && ndim <= kMaxDims, "read_idx: {}: {} dims, 1 to {} are possible", path,
             ndim, kMaxDims);
  unsigned char raw[4 * kMaxDims];
  file.read(raw, 4, 4 * static_cast<uint64_t>(ndim));
  const uint64_t data = 4 + 4 * static_cast<uint64_t>(ndim), have = file.size() - data;
  IntList sizes;
  for (int i = 0; i < ndim; ++i) {
    const unsigned char* p = raw + 4 * i;
    const uint64_t size = uint64_t{p[0]} << 24 | uint64_t{p[1]} << 16 | uint64_t{p[2]} << 8 | p[3];
    sizes.push_back(static_cast<int64_t>(size));
  }
  int64_t elements;
  const bool huge = !product_of(sizes, elements);  // Eight sizes of 2^32 would overflow.
  const uint64_t expected = static_cast<uint64_t>(elements) * element.bytes;
  BRRR_CHECK(!huge && expected == have,
             "read_idx: {}: {} {} take {} bytes, but the file has {} (cut off, or not IDX)", path,
             element.name, to_string(sizes), huge ? "too many" : std::to_string(expected), have);

  Tensor t = raw_empty(sizes, element.dtype, kCPU);
  const int64_t n = t.numel();
  const size_t wide = itemsize(element.dtype), bytes = element.bytes;
  auto* to = static_cast<char*>(t.data_ptr());
  if (bytes == wide) {
    file.read(to, data, have);
    swap_bytes(to, n, wide);
    return t;
  }
  // Widens int8 and int16 to int32: places them in the high bytes, then shifts arithmetically.
  const std::string narrow = file.read(data, have);
  std::fill_n(to, static_cast<size_t>(n) * wide, '\0');
  for (int64_t i = 0; i < n; ++i) std::copy_n(narrow.data() + i * bytes, bytes, to + i * wide);
  swap_bytes(to, n, wide);
  auto* v = reinterpret_cast<int32_t*>(to);
  for (int64_t i = 0; i < n; ++i) v[i] >>= 8 * (wide - bytes);
  return t;
}

void write_idx(const std::string& path, const Tensor& t) {
  check_host_access("write_idx", t.impl());
  BRRR_CHECK(t.defined() && t.dim() >= 1, "write_idx: {}: a tensor with at least one dim is needed",
             path);
  const Element* element = nullptr;
  for (const Element& e : kElements) {
    if (e.dtype == t.dtype() && e.bytes == itemsize(t.dtype())) element = &e;
  }
  BRRR_CHECK(element, "write_idx: {}: {} has no IDX type; convert to uint8, int32 or a float", path,
             name(t.dtype()));
  NoGradGuard guard;
  const Tensor host = t.detach().to(kCPU).contiguous();
  std::string header{0, 0, static_cast<char>(element->code), static_cast<char>(t.dim())};
  for (int64_t size : t.sizes()) {
    BRRR_CHECK(size <= INT32_MAX, "write_idx: {}: a size of {} does not fit", path, size);
    for (int shift = 24; shift >= 0; shift -= 8) header += static_cast<char>(size >> shift);
  }
  const size_t bytes = static_cast<size_t>(t.numel()) * element->bytes;
  const auto* from = static_cast<const char*>(host.data_ptr());
  std::vector<char> data(from, from + bytes);
  swap_bytes(data.data(), t.numel(), element->bytes);
  replace_file(path, {{header.data(), header.size()}, {data.data(), data.size()}});
}

// MNIST is distributed with both "-" and "." before "idx".
static std::string find_file(const std::string& directory, const std::string& stem,
                             const std::string& end) {
  namespace fs = std::filesystem;
  std::error_code none;
  std::string packed;
  for (const char* joint : {"-", "."}) {
    const fs::path path = fs::path(directory) / (stem + joint + end);
    if (fs::is_regular_file(path, none)) return path.string();
    if (fs::exists(path.string() + ".gz", none)) packed = path.string() + ".gz";
  }
  BRRR_CHECK(packed.empty(), "read_idx_dataset: {} is compressed; run: gunzip {}", packed, packed);
  fail("read_idx_dataset: {} has no file {}-{}; it should hold MNIST's four files, unpacked",
       directory, stem, end);
}

Dataset read_idx_dataset(const std::string& directory, bool train) {
  const std::string part = train ? "train" : "t10k";
  const std::string image_file = find_file(directory, part + "-images", "idx3-ubyte");
  const std::string label_file = find_file(directory, part + "-labels", "idx1-ubyte");
  const Tensor images = read_idx(image_file), labels = read_idx(label_file);
  BRRR_CHECK(images.dtype() == kUInt8 && images.dim() == 3 && images.numel() > 0,
             "read_idx_dataset: {} holds {}, expected uint8[n, rows, columns]", image_file,
             describe(images));
  BRRR_CHECK(labels.dtype() == kUInt8 && labels.dim() == 1 && labels.size(0) == images.size(0),
             "read_idx_dataset: {} holds {}, expected uint8[{}], one label an image", label_file,
             describe(labels), images.size(0));
  NoGradGuard guard;
  return {images.to(kFloat32).reshape({images.size(0), -1}) / 255.0, labels.to(kInt64),
          std::max<int64_t>(1 + labels.max().item<int64_t>(), 10)};
}

}  // namespace brrr::data
