// Warp-collective instructions. The scheduler runs them once all lanes of `m` have arrived.

#include "tests/emulator/mma.h"
#include "tests/emulator/ptx_warp.h"

namespace brrr::emulator::ptx {

namespace {

enum class Shuffle { index, up, down, bfly };

// As the ISA defines it: c bounds the source lane; a lane with a source out of bounds gets its own
// value and false.
template <Shuffle how> void shuffle(Warp& w, const Insn& i, Mask m) {
  const bool has_truth = i.count == 6;
  const int at = has_truth ? 2 : 1;
  const Operand &d = w.operand(i, 0), &a = w.operand(i, at);
  const uint64_t *b = w.row(w.operand(i, at + 1)), *c = w.row(w.operand(i, at + 2));
  uint64_t from[lanes];
  std::memcpy(from, w.row(a), sizeof from);
  uint64_t* to = w.row_of(d);
  Mask yes = 0, known = 0;
  const Mask known_a = w.known_of(a);
  each(m, [&](int lane) {
    const int distance = static_cast<int>(b[lane] & 31), bound = static_cast<int>(c[lane] & 31),
              segment = static_cast<int>(c[lane] >> 8 & 31);
    const int most = (lane & segment) | (bound & ~segment), least = lane & segment;
    int source = lane;
    bool inside = false;
    switch (how) {
      case Shuffle::up:
        source = lane - distance;
        inside = source >= most;
        break;
      case Shuffle::down:
        source = lane + distance;
        inside = source <= most;
        break;
      case Shuffle::bfly:
        source = lane ^ distance;
        inside = source <= most;
        break;
      case Shuffle::index:
        source = least | (distance & ~segment);
        inside = source <= most;
        break;
    }
    if (!inside) source = lane;
    if (!(m >> source & 1)) {
      fail_at(w, i, lane,
              fmt::format("takes the value of lane {}, which does not take part", source));
    }
    to[lane] = from[source] & 0xffffffff;
    yes |= Mask{inside} << lane;
    known |= (known_a >> source & 1) << lane;
  });
  w.define(d, m, known);
  if (has_truth) w.set_truth(w.operand(i, 1), m, yes, all_lanes);
}

void ballot(Warp& w, const Insn& i, Mask m) {
  const Operand &d = w.operand(i, 0), &a = w.operand(i, 1);
  const Mask votes = w.truth_of(a) & m;
  uint64_t* to = w.row_of(d);
  each(m, [&](int l) { to[l] = votes; });
  w.define(d, m, (w.known_of(a) & m) == m ? all_lanes : 0);
}

template <bool all> void vote(Warp& w, const Insn& i, Mask m) {
  const Operand &d = w.operand(i, 0), &a = w.operand(i, 1);
  const Mask votes = w.truth_of(a) & m;
  w.set_truth(d, m, (all ? votes == m : votes != 0) ? all_lanes : 0,
              (w.known_of(a) & m) == m ? all_lanes : 0);
}

// mma: d, a, b, c have 4, 4, 2 and 4 registers.
template <float (*widen)(unsigned short)> void multiply(Warp& w, const Insn& i, Mask m) {
  brrr_emulator::Slot slots[lanes];
  Mask known = all_lanes;
  for (int k = 0; k < 6; ++k) {
    const Operand& o = w.operand(i, 4 + k);
    for (int l = 0; l < lanes; ++l) {
      const auto x = static_cast<uint32_t>(w.row(o)[l]);
      std::memcpy(slots[l].bytes + k * 4, &x, 4);
    }
    known &= w.known_of(o);
  }
  for (int k = 0; k < 4; ++k) known &= w.known_of(w.operand(i, 10 + k));
  // An element depends on many lanes' registers; requires those of all lanes to be defined.
  if (known != all_lanes) {
    fail_at(w, i, first_of(~known), "multiplies registers that were never written");
  }
  uint64_t results[4][lanes];
  for (int l = 0; l < lanes; ++l) {
    float c[4];
    for (int k = 0; k < 4; ++k) c[k] = get<float>(w.row(w.operand(i, 10 + k))[l]);
    multiply_fragments<widen>(c, slots, static_cast<unsigned>(l));
    for (int k = 0; k < 4; ++k) results[k][l] = put<float>(c[k]);
  }
  for (int k = 0; k < 4; ++k) {
    const Operand& d = w.operand(i, k);
    std::memcpy(w.row_of(d), results[k], sizeof results[k]);
    w.define(d, m, all_lanes);
  }
}

void meet(Warp& w, const Insn&, Mask) { ++w.epoch; }

}  // namespace

void add_collectives(Table& t) {
  t["shfl.sync.idx.b32"] = {shuffle<Shuffle::index>, Kind::Collective};
  t["shfl.sync.up.b32"] = {shuffle<Shuffle::up>, Kind::Collective};
  t["shfl.sync.down.b32"] = {shuffle<Shuffle::down>, Kind::Collective};
  t["shfl.sync.bfly.b32"] = {shuffle<Shuffle::bfly>, Kind::Collective};
  t["vote.sync.ballot.b32"] = {ballot, Kind::Collective};
  t["vote.sync.any.pred"] = {vote<false>, Kind::Collective};
  t["vote.sync.all.pred"] = {vote<true>, Kind::Collective};
  t["mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"] = {multiply<widen_bf16>,
                                                              Kind::Collective};
  t["mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"] = {multiply<widen_f16>, Kind::Collective};
  t["bar.warp.sync"] = {meet, Kind::Collective};
  t["bar.sync"] = t["barrier.sync"] = t["barrier.sync.aligned"] = {nullptr, Kind::BlockBarrier};
  t["bra"] = t["bra.uni"] = {nullptr, Kind::Branch};
  t["ret"] = t["ret.uni"] = {nullptr, Kind::Return};
  t["exit"] = {nullptr, Kind::Exit};
  const auto nothing = [](Warp&, const Insn&, Mask) {};
  t["membar.gl"] = t["membar.cta"] = t["membar.sys"] = {nothing};
  t["fence.acq_rel.cta"] = t["fence.acq_rel.gpu"] = t["fence.sc.gpu"] =
      t["fence.sc.cta"] = {nothing};
}

const Op* find_op(const std::string& mnemonic) {
  static const Table table = [] {
    Table t;
    add_integer(t);
    add_float(t);
    add_conversions(t);
    add_moves(t);
    add_collectives(t);
    add_copies(t);
    return t;
  }();
  const auto it = table.find(mnemonic);
  return it == table.end() ? nullptr : &it->second;
}

}  // namespace brrr::emulator::ptx
