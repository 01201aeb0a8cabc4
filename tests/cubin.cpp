#include "tests/cubin.h"

#include <elf.h>

#include <cstring>

namespace brrr::test {

namespace {

template <class T> T read(const std::string& from, size_t at) {
  T x{};
  if (at + sizeof x <= from.size()) std::memcpy(&x, from.data() + at, sizeof x);
  return x;
}

}  // namespace

std::vector<KernelResources> resources_of(const std::string& cubin) {
  std::vector<KernelResources> all;
  if (!cubin.starts_with(ELFMAG)) return all;
  const auto header = read<Elf64_Ehdr>(cubin, 0);
  const auto section = [&](size_t k) {
    return read<Elf64_Shdr>(cubin, header.e_shoff + k * header.e_shentsize);
  };
  const auto text = [&](size_t strings, size_t at) {
    const size_t from = section(strings).sh_offset + at;
    return from < cubin.size() ? std::string(cubin.c_str() + from) : std::string();
  };
  for (size_t k = 0; k < header.e_shnum; ++k) {
    const Elf64_Shdr info = section(k);
    if (text(header.e_shstrndx, info.sh_name) != ".nv.info") continue;
    const Elf64_Shdr symbols = section(info.sh_link);
    // An attribute is a format byte, a kind byte, and two bytes: the payload's size in format 4 (a
    // function's payload is its symbol and a number), the value itself in other formats.
    constexpr uint8_t kSized = 4, kFrameSize = 0x11;
    for (size_t at = info.sh_offset, end = at + info.sh_size; at < end;) {
      const auto format = read<uint8_t>(cubin, at), what = read<uint8_t>(cubin, at + 1);
      const auto size = read<uint16_t>(cubin, at + 2);
      if (format == kSized && what == kFrameSize) {
        const auto symbol = read<Elf64_Sym>(
            cubin, symbols.sh_offset + read<uint32_t>(cubin, at + 4) * sizeof(Elf64_Sym));
        all.push_back({text(symbols.sh_link, symbol.st_name), read<uint32_t>(cubin, at + 8)});
      }
      at += 4 + (format == kSized ? size : 0);
    }
  }
  return all;
}

}  // namespace brrr::test
