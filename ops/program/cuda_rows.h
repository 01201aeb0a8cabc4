#pragma once
// A program with rows for a GPU: which walkers take which rows, the text of its kernels, and the
// argument struct of their launches. A walker is a set of threads, its lanes, that share rows.
//
// THE ORDER of a fold is a function of sizes alone, in a row op, a reduction or a fused group.
// - A row of n elements is cut into groups of 4 neighbours (2, 1 where n is no multiple of that).
//   Group k belongs to lane k % lanes, which takes its elements by growing index; then lane l is
//   combined with l + lanes / 2, ... + 1, within warps of 32 first, then across them.
// - A program's only row has 1024 lanes; every kLongestPiece elements of it are folded as a row of
//   their own, and the results of these as a total.
// - Over rows: walkers take `steps` rows each, in order. Walker w's result goes to slot w % 32,
//   which combines its own in order; then slot s is combined with s + 16, + 8, ... + 1 (with those
//   that have a walker: a fold's initial value changes nothing).
// - A total folds a scalar per row, as a row whose 1024 lanes take groups of one.

#include <bit>

#include "ops/program/cuda.h"

namespace brrr::program {

/// The properties of a program's statements that decide how its rows are walked.
struct RowTraits {
  bool folds = false;  ///< Something depends on a whole row.
  int columns = 0;     ///< Folds over the rows, per place in a row,
  int totals = 0;      ///< and of a scalar per row.
  int reused = 0;      ///< Windows whose elements are re-read after a fold.
  int item = 4;        ///< Bytes of the widest folded type.
  /// There is one row, which is cut into pieces; a launch of its own folds their results into one
  /// scalar. No element depends on it, and the folds count as totals.
  bool split = false;
};
RowTraits row_traits(const Program& p, bool split);

/// What is computed when: a pass for each depth of folds. Each pass recomputes per-element values,
/// except for at most `values` that are expensive and stay in registers.
struct DeviceRowPasses {
  DeviceRowPasses(const Program& p, bool split, int values = 0);

  std::vector<RowState> states;
  std::vector<int> live;  ///< Statements that a result depends on.
  int deepest = 0;
  std::vector<RowPass> passes;
  std::vector<int> reused;  ///< Windows that several passes read.
};

inline constexpr int64_t kLongestPiece = 16384;  ///< Elements of a piece of a split row.

/// Rows are those of matrices, one after the other; a fold over rows stays within one matrix. A
/// matrix, or the row of a matrix that has only one, may be a piece of a longer one.
struct RowWalk {
  RowTraits traits;
  int64_t rows = 0;      ///< Of all matrices.
  int64_t n = 0;         ///< Elements of a row, or of every piece but the last.
  int64_t matrices = 1;  ///< Counted by the outermost dims.
  int64_t matrix = 0;    ///< Rows per matrix.
  int64_t pieces = 1;    ///< Per longer row,
  int64_t length = 0;    ///< which has this many elements.
  int64_t steps = 1;     ///< Rows per walker.
  int ndim = 1;          ///< Of the space.
  int log_group = 0;     ///< Log2 of the elements per group.
  int log_lanes = 0;     ///< Log2 of the threads per walker.
  int slots = 0;         ///< Groups per lane that stay in registers; 0: re-read by each pass.
  int spare = 0;         ///< Registers of a lane that are left over.
  bool even = false;     ///< The rows of a matrix with folded columns are one dim.
  bool wide = false;     ///< Row indices, or byte offsets in a row, need 64 bits.

  /// The fields that are words of the argument.
  struct Named {
    const char* name;
    int64_t RowWalk::*value;
  };
  static const Named fields[6];

  bool ragged() const { return pieces > 1 || traits.split; }  ///< The last piece may be shorter.
  int group() const { return 1 << log_group; }
  int lanes() const { return 1 << log_lanes; }
  int threads(Stage stage = Stage::Elements) const {
    if (stage == Stage::Elements) return std::max(lanes(), kDeviceThreads);
    return stage == Stage::Columns ? col_slots() * width() : 1024;
  }
  int per_block() const { return threads() / lanes(); }             ///< Walkers per block.
  int64_t walkers() const { return (matrix + steps - 1) / steps; }  ///< Per matrix.
  /// For Stage::Columns: slots per column in a block, which combine the walkers' parts, and columns
  /// per block: where columns are few, they are spread over more blocks. Pieces have at most 128.
  int col_slots() const {
    return static_cast<int>(
        std::min<uint64_t>(32, std::bit_ceil(static_cast<uint64_t>(walkers()))));
  }
  int width() const { return std::min(128, (few_columns() ? 256 : 1024) / col_slots()); }
  bool few_columns() const { return matrices * n < 1 << 13; }
  /// The offset of a fold's parts in the program's scratch memory; columns come first.
  int64_t scratch(int fold) const;
  int64_t scratch_bytes() const { return scratch(traits.columns + traits.totals); }
  /// Distinguishes the text from that of other walks of the same program.
  uint64_t bits() const;
};

inline constexpr RowWalk::Named RowWalk::fields[6] = {
    {"rows", &RowWalk::rows},     {"matrices", &RowWalk::matrices}, {"matrix", &RowWalk::matrix},
    {"pieces", &RowWalk::pieces}, {"length", &RowWalk::length},     {"steps", &RowWalk::steps}};

/// The walk of a program whose row is the last dim; the first `outer` dims count matrices. Sets the
/// windows' reaches. Rows longer than `longest`, if that is not 0, and those that are only folded
/// over rows are cut into pieces: one more dim, after the outer ones.
RowWalk plan_rows(Space& space, std::span<Window> windows, const RowTraits& traits, int outer = 0,
                  int64_t longest = 0);

/// As for a Walk. The functions that such kernels call go before: kRowText.
std::string cuda_text(const Program& p, const RowWalk& walk, const std::string& name, Stage stage,
                      bool table = false);
extern const char kRowText[];

template <class F> void each_launch(const RowWalk& w, const Space&, const F& launch) {
  const int64_t all = w.matrices * w.walkers(), across = (w.n + w.width() - 1) / w.width();
  if (w.rows > 0) launch(Stage::Elements, (all + w.per_block() - 1) / w.per_block(), w.threads());
  if (w.traits.columns) launch(Stage::Columns, w.matrices * across, w.threads(Stage::Columns));
  if (w.traits.totals) launch(Stage::Numbers, int64_t{1}, w.threads(Stage::Numbers));
}

/// The value of a scratch word is the offset in scratch memory.
template <class F>
void each_word(const RowWalk& walk, const Space& space, std::span<const Window> windows,
               std::span<const Number> numbers, const F& word) {
  each_word(Walk{.ndim = space.ndim, .notes = true}, space, windows, numbers, word);
  for (int k = 0; const auto& n : RowWalk::fields) word(Word{Word::Rows, k++}, walk.*n.value);
  for (int k = 0; k < walk.traits.columns + walk.traits.totals; ++k) {
    word(Word{Word::Scratch, k}, walk.scratch(k));
  }
}

}  // namespace brrr::program
