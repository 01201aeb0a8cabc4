#pragma once
// Shadow memory: records which threads read and wrote which bytes, to detect data races.

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

namespace brrr::emulator::ptx {

/// An access. Block numbers are unique across launches, so the shadow need not be cleared.
struct Access {
  uint32_t block = 0;  // 0: none
  uint32_t block_epoch = 0, warp_epoch = 0;
  uint16_t thread = 0;
  static constexpr uint8_t strong = 16;  // volatile
  uint8_t flags = 0;                     // strong, and flags private to the shadow
};

class Shadow {
 public:
  /// A cell covers `most` bytes, or fewer once its page has been accessed at a finer granularity.
  explicit Shadow(uint32_t most) : most_(most) {}

  /// Records a read. Returns null or a message about a race with the access `*other`. Blocks before
  /// `first` belong to earlier launches and do not count.
  const char* read(uint64_t at, uint32_t bytes, const Access& me, uint32_t first, bool read_only,
                   Access* other);
  /// The same for a write. `same`: the bytes already have the values that are written.
  const char* write(uint64_t at, uint32_t bytes, const Access& me, uint32_t first, bool same,
                    Access* other);
  /// Whether the block has written all of these bytes.
  bool written(uint64_t at, uint32_t bytes, uint32_t block);
  /// Clears the shadow if it has become large.
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
  Page* page(uint64_t number);  // null if there are too many
  template <class F> const char* visit(uint64_t at, uint32_t bytes, F f);

  uint32_t most_;
  std::unordered_map<uint64_t, std::unique_ptr<Page>> pages_;
  uint64_t last_number_ = ~uint64_t{0};
  Page* last_ = nullptr;
};

}  // namespace brrr::emulator::ptx
