#pragma once
// A program with rows for a GPU: who walks which rows, the text of its kernels, and the struct that
// their launches hand over.
//
// THE ORDER of a fold is a function of sizes alone, whoever folds: a row op, a reduction, a group.
// - A row of n elements is cut into groups of 4 neighbours (2, 1 where n is no multiple of that).
//   Group k belongs to lane k % lanes, which takes its elements by growing index; then lane l is
//   combined with l + lanes / 2, ... + 1, within warps of 32 first, then across them.
// - A row that is all there is has 1024 lanes; each kLongestPiece elements of it are a row of their
//   own, and what they have a total.
// - Over rows: walkers take `steps` rows each, one after the other. What walker w has goes to slot
//   w % 32, which takes its own in order; then slot s is combined with s + 16, + 8, ... + 1 (with
//   those that have a walker: what a fold begins with changes nothing).
// - A total folds what the rows have as a row does that 1024 lanes take one by one.

#include <bit>

#include "ops/program/cuda.h"

namespace brrr::program {

/// What in a program's statements decides how its rows are walked.
struct RowTraits {
  bool folds = false;  ///< Something depends on a whole row.
  int columns = 0;     ///< Folds over the rows of each place in them,
  int totals = 0;      ///< and of a number of each row.
  int reused = 0;      ///< Windows whose elements are read again after a fold.
  int item = 4;        ///< Bytes of the widest number that is folded.
  /// There is one row, which is taken in pieces; what they have becomes one number in a launch of
  /// its own. No element depends on it, and the folds count as totals.
  bool split = false;
};
RowTraits row_traits(const Program& p, bool split);

/// What is computed when: a pass for each depth of folds. Values of elements are computed anew in
/// each, but for at most so many that are long to compute and stay in registers.
struct DeviceRowPasses {
  DeviceRowPasses(const Program& p, bool split, int values = 0);

  std::vector<RowState> states;
  std::vector<int> live;  ///< Statements that a result depends on.
  int deepest = 0;
  std::vector<RowPass> passes;
  std::vector<int> reused;  ///< Windows that several passes read.
};

inline constexpr int64_t kLongestPiece = 16384;

/// Rows are those of matrices, one after the other; folds over rows are of one matrix. A matrix, or
/// where it has one row a row, may be a piece of a longer one.
struct RowWalk {
  RowTraits traits;
  int64_t rows = 0;      ///< Of all matrices.
  int64_t n = 0;         ///< Elements of a row, or of all pieces but the last one.
  int64_t matrices = 1;  ///< The outermost dims count them.
  int64_t matrix = 0;    ///< Rows of a matrix.
  int64_t pieces = 1;    ///< Of a longer row,
  int64_t length = 0;    ///< which has so many elements.
  int64_t steps = 1;     ///< Rows that a walker takes.
  int ndim = 1;          ///< Of the space.
  int log_group = 0;     ///< Elements of a group.
  int log_lanes = 0;     ///< Threads of a walker.
  int slots = 0;         ///< Groups of a lane that stay in registers; 0: read again each time.
  int room = 0;          ///< Registers of a lane that are left.
  bool even = false;     ///< A matrix's rows, whose columns are folded, are one dim.
  bool wide = false;     ///< Numbers of rows, or of bytes within a row, need 64 bits.

  /// Those that are words of the argument.
  struct Named {
    const char* name;
    int64_t RowWalk::*value;
  };
  static const Named numbers[6];

  bool ragged() const { return pieces > 1 || traits.split; }  ///< The last piece may be shorter.
  int group() const { return 1 << log_group; }
  int lanes() const { return 1 << log_lanes; }
  int threads(Stage stage = Stage::Elements) const {
    if (stage == Stage::Elements) return std::max(lanes(), kDeviceThreads);
    return stage == Stage::Columns ? folders() * across() : 1024;
  }
  int side() const { return threads() / lanes(); }                  ///< Walkers of a block.
  int64_t walkers() const { return (matrix + steps - 1) / steps; }  ///< Of a matrix.
  /// Slots for walkers in a block that adds up what they left, and columns that it does so for:
  /// where there are few, more blocks have some. Pieces of rows have no more than 128.
  int folders() const {
    return static_cast<int>(
        std::min<uint64_t>(32, std::bit_ceil(static_cast<uint64_t>(walkers()))));
  }
  int across() const { return std::min(128, (few_columns() ? 256 : 1024) / folders()); }
  bool few_columns() const { return matrices * n < 1 << 13; }
  /// Where the parts of a fold over rows lie in the program's scratch memory; columns come first.
  int64_t scratch(int fold) const;
  int64_t scratch_bytes() const { return scratch(traits.columns + traits.totals); }
  /// What tells the text apart from that of other walks of the same program.
  uint64_t bits() const;
};

inline constexpr RowWalk::Named RowWalk::numbers[6] = {
    {"rows", &RowWalk::rows},     {"matrices", &RowWalk::matrices}, {"matrix", &RowWalk::matrix},
    {"pieces", &RowWalk::pieces}, {"length", &RowWalk::length},     {"steps", &RowWalk::steps}};

/// The walk of a program whose row is the last dim; `outer` of the dims before it count matrices.
/// It sets the windows' reaches. Rows longer than `longest`, if that is not 0, and those that are
/// folded over rows alone become pieces: one more dim, behind the outer ones.
RowWalk plan_rows(Space& space, std::span<Window> windows, const RowTraits& traits, int outer = 0,
                  int64_t longest = 0);

/// As of a Walk. What such kernels are written in goes before: kRowText.
std::string cuda_text(const Program& p, const RowWalk& walk, const std::string& name, Stage stage,
                      bool table = false);
extern const char kRowText[];

template <class F> void each_launch(const RowWalk& w, const Space&, const F& launch) {
  const int64_t all = w.matrices * w.walkers(), across = (w.n + w.across() - 1) / w.across();
  if (w.rows > 0) launch(Stage::Elements, (all + w.side() - 1) / w.side(), w.threads());
  if (w.traits.columns) launch(Stage::Columns, w.matrices * across, w.threads(Stage::Columns));
  if (w.traits.totals) launch(Stage::Numbers, int64_t{1}, w.threads(Stage::Numbers));
}

/// Of scratch memory the value is the place in it.
template <class F>
void each_word(const RowWalk& walk, const Space& space, std::span<const Window> windows,
               std::span<const Number> numbers, const F& word) {
  each_word(Walk{.ndim = space.ndim, .notes = true}, space, windows, numbers, word);
  for (int k = 0; const auto& n : RowWalk::numbers) word(Word{Word::Rows, k++}, walk.*n.value);
  for (int k = 0; k < walk.traits.columns + walk.traits.totals; ++k) {
    word(Word{Word::Scratch, k}, walk.scratch(k));
  }
}

}  // namespace brrr::program
