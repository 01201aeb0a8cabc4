#pragma once
// Who has read and written which bytes: races are accesses that no barrier puts in an order.

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

namespace brrr::emulator::ptx {

/// An access. Blocks have numbers of their own in all launches, so nothing is ever cleared.
struct Access {
  uint32_t block = 0;  // 0: none
  uint32_t block_epoch = 0, warp_epoch = 0;
  uint16_t thread = 0;
  static constexpr uint8_t strong = 16;  // volatile
  uint8_t flags = 0;                     // strong, or what else the shadow notes
};

class Shadow {
 public:
  /// A cell is of `most` bytes, or of fewer once a page has been accessed in smaller pieces.
  explicit Shadow(uint32_t most) : most_(most) {}

  /// The words that say what is wrong, or null; then `who` is the other access. Accesses of blocks
  /// before `first` are of other launches and do not count.
  const char* read(uint64_t at, uint32_t bytes, const Access& me, uint32_t first, bool read_only,
                   Access* who);
  /// `same`: the bytes already have the values that are written.
  const char* write(uint64_t at, uint32_t bytes, const Access& me, uint32_t first, bool same,
                    Access* who);
  /// Whether the block has written all of these bytes.
  bool written(uint64_t at, uint32_t bytes, uint32_t block);
  /// Forgets everything when it has become large.
  void trim();

 private:
  struct Cell {
    Access writer, reader;
  };
  struct Page {
    uint32_t shift = 2;
    std::vector<Cell> cells;
  };
  static constexpr uint32_t page_bytes = 1024;
  Page* page(uint64_t number);  // null when there are too many
  template <class F> const char* visit(uint64_t at, uint32_t bytes, F f);

  uint32_t most_;
  std::unordered_map<uint64_t, std::unique_ptr<Page>> pages_;
  uint64_t last_number_ = ~uint64_t{0};
  Page* last_ = nullptr;
};

}  // namespace brrr::emulator::ptx
