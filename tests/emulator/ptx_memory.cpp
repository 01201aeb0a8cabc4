// ld, st, asynchronous copies and the arguments of calls. Each access is checked before it is made.

#include <algorithm>

#include "tests/emulator/ptx_warp.h"

namespace brrr::emulator::ptx {

namespace {

Access access_of(const Warp& w, const Insn& i, int lane) {
  return {w.block->serial, w.block->epoch, w.epoch, static_cast<uint16_t>(w.number * lanes + lane),
          i.is_volatile ? Access::strong : uint8_t{0}};
}

std::string name_of(const Warp& w, const Access& other) {
  if (other.block == w.block->serial) return fmt::format("thread {}", other.thread);
  return fmt::format("thread {} of block {} in the order that they run", other.thread,
                     other.block - w.block->first_serial);
}

[[noreturn]] void fail_race(const Warp& w, const Insn& i, int lane, const char* error,
                            const Access& other, const char* space, uint64_t at) {
  fail_at(w, i, lane, fmt::format("{}: {} at {} {:#x}", error, name_of(w, other), space, at));
}

void expect_inside(const Warp& w, const Insn& i, int lane, const char* space, uint64_t at,
                   uint64_t bytes, uint64_t all) {
  if (at <= all && bytes <= all - at) return;
  fail_at(w, i, lane,
          fmt::format("accesses {} bytes at {} of {}, which has {} bytes", bytes,
                      static_cast<int64_t>(at), space, all));
}

// Finds the allocation or variable, trying first the one accessed last, and checks its bounds.
void expect_global(const Warp& w, const Insn& i, int lane, uint64_t at, uint64_t bytes) {
  Block& b = *w.block;
  if (at >= b.begin && at + bytes <= b.end) return;
  for (const GlobalVariable& v : b.kernel->program->variables) {
    if (at < v.begin || at >= v.begin + v.bytes) continue;
    b.begin = v.begin;
    b.end = v.begin + v.bytes;
    b.is_variable = true;
  }
  if (at < b.begin || at >= b.end) {
    const auto [begin, end] = b.memory->range(reinterpret_cast<const void*>(at));
    if (begin == end) {
      fail_at(w, i, lane, fmt::format("accesses {} bytes at {:#x}, where no memory is", bytes, at));
    }
    b.begin = begin;
    b.end = end;
    b.is_variable = false;
  }
  if (at + bytes > b.end) {
    fail_at(w, i, lane,
            fmt::format("accesses {} bytes at {:#x}, {} bytes before the end of an allocation of "
                        "{} bytes",
                        bytes, at, b.end - at, b.end - b.begin));
  }
}

struct Place {
  Space space;
  uint64_t at;
};

// The state space and offset of a generic address.
Place resolve(const Warp& w, const Insn& i, int lane, uint64_t address) {
  if (i.space != Space::Generic) return {i.space, address};
  switch (address >> 60) {
    case 1:
      return {Space::Shared, address - shared_window};
    case 2:
      return {Space::Local, address - local_window};
    case 3:
      return {Space::Parameter, address - parameter_window};
    case 0:
      return {Space::Global, address};
    default:
      fail_at(w, i, lane, fmt::format("accesses the generic address {:#x}", address));
  }
}

uint64_t address_of(const Warp& w, const Insn& i, int lane, const Operand& base, Mask known,
                    uint64_t bytes) {
  if (!(known >> lane & 1)) {
    fail_at(w, i, lane, "takes its address from a register that was never written");
  }
  const uint64_t at = w.row(base)[lane] + static_cast<uint64_t>(i.offset);
  if (at % bytes != 0) {
    fail_at(w, i, lane,
            fmt::format("accesses {} bytes at {:#x}, which is not aligned to them", bytes, at));
  }
  return at;
}

// Checks a read; returns where the bytes are in host memory (null for local memory).
const unsigned char* reading(Warp& w, const Insn& i, int lane, Place p, uint32_t bytes) {
  Block& b = *w.block;
  Access other;
  switch (p.space) {
    case Space::Shared: {
      expect_inside(w, i, lane, "shared memory", p.at, bytes, b.shared.size());
      if (!b.shared_shadow.written(p.at, bytes, b.serial)) {
        fail_at(w, i, lane,
                fmt::format("reads shared memory at {} that no thread of the block has "
                            "written",
                            p.at));
      }
      const char* error =
          b.shared_shadow.read(p.at, bytes, access_of(w, i, lane), b.serial, false, &other);
      if (error) fail_race(w, i, lane, error, other, "shared memory", p.at);
      return b.shared.data() + p.at;
    }
    case Space::Local:
      return nullptr;
    case Space::Parameter:
      expect_inside(w, i, lane, "the parameters", p.at, bytes, b.kernel->description.params_bytes);
      return static_cast<const unsigned char*>(b.work->params) + p.at;
    default: {
      expect_global(w, i, lane, p.at, bytes);
      const auto* from = reinterpret_cast<const unsigned char*>(p.at);
      const char* error = b.global_shadow->read(p.at, bytes, access_of(w, i, lane), b.first_serial,
                                                i.read_only, &other);
      if (error) fail_race(w, i, lane, error, other, "address", p.at);
      return from;
    }
  }
}

uint64_t element(const unsigned char* from, const Insn& i) {
  uint64_t x = 0;
  std::memcpy(&x, from, i.bytes);
  if (i.is_signed && i.bytes < 8 && x >> (i.bytes * 8 - 1) & 1) x |= ~uint64_t{0} << (i.bytes * 8);
  return x;
}

void load(Warp& w, const Insn& i, Mask m) {
  const Operand base = w.operand(i, i.vector);
  const Mask known = w.known_of(base);
  const uint32_t bytes = uint32_t{i.bytes} * i.vector;
  uint64_t values[4][lanes];
  Mask defined[4] = {all_lanes, all_lanes, all_lanes, all_lanes};
  each(m, [&](int l) {
    const Place p = resolve(w, i, l, address_of(w, i, l, base, known, bytes));
    const unsigned char* from = reading(w, i, l, p, bytes);
    if (p.space == Space::Global && !w.block->is_variable &&
        !w.block->memory->marks.all(p.at, bytes)) {
      for (uint32_t k = 0; k < i.vector; ++k) {
        if (!w.block->memory->marks.all(p.at + k * i.bytes, i.bytes)) {
          defined[k] &= ~(Mask{1} << l);
        }
      }
    }
    if (!from) {
      const uint64_t all = w.local.size() / lanes;
      expect_inside(w, i, l, "local memory", p.at, bytes, all);
      from = w.local.data() + static_cast<uint64_t>(l) * all + p.at;
      const unsigned char* written = w.local_known.data() + static_cast<uint64_t>(l) * all + p.at;
      for (uint32_t k = 0; k < bytes; ++k) {
        if (!written[k]) defined[k / i.bytes] &= ~(Mask{1} << l);
      }
    }
    for (uint32_t k = 0; k < i.vector; ++k) values[k][l] = element(from + k * i.bytes, i);
  });
  for (int k = 0; k < i.vector; ++k) {
    const Operand& d = w.operand(i, k);
    uint64_t* to = w.row_of(d);
    each(m, [&](int l) { to[l] = values[k][l]; });
    w.define(d, m, defined[k]);
  }
}

// Checks and performs a write to shared or global memory.
void write_common(Warp& w, const Insn& i, int lane, Place p, const unsigned char* bytes,
                  uint32_t count) {
  Block& b = *w.block;
  Access other;
  unsigned char* to = nullptr;
  const char *error = nullptr, *space = "address";
  if (p.space == Space::Shared) {
    expect_inside(w, i, lane, "shared memory", p.at, count, b.shared.size());
    to = b.shared.data() + p.at;
    space = "shared memory";
    error = b.shared_shadow.write(p.at, count, access_of(w, i, lane), b.serial,
                                  std::memcmp(to, bytes, count) == 0, &other);
  } else {
    expect_global(w, i, lane, p.at, count);
    to = reinterpret_cast<unsigned char*>(p.at);
    error = b.global_shadow->write(p.at, count, access_of(w, i, lane), b.first_serial,
                                   std::memcmp(to, bytes, count) == 0, &other);
    if (!b.is_variable) b.memory->marks.set(p.at, count, true);
  }
  if (error) fail_race(w, i, lane, error, other, space, p.at);
  std::memcpy(to, bytes, count);
}

void store(Warp& w, const Insn& i, Mask m) {
  const Operand base = w.operand(i, 0);
  const Mask known = w.known_of(base);
  const uint32_t bytes = uint32_t{i.bytes} * i.vector;
  each(m, [&](int l) {
    const Place p = resolve(w, i, l, address_of(w, i, l, base, known, bytes));
    unsigned char values[32];
    bool defined[4] = {};
    for (int k = 0; k < i.vector; ++k) {
      const Operand& a = w.operand(i, 1 + k);
      std::memcpy(values + k * i.bytes, &w.row(a)[l], i.bytes);
      defined[k] = w.known_of(a) >> l & 1;
      if (!defined[k] && p.space != Space::Local) {
        fail_at(w, i, l, "stores an undefined value, from a register or memory");
      }
    }
    if (p.space == Space::Parameter) fail_at(w, i, l, "stores to the kernel's parameters");
    if (p.space != Space::Local) return write_common(w, i, l, p, values, bytes);
    const uint64_t all = w.local.size() / lanes;
    expect_inside(w, i, l, "local memory", p.at, bytes, all);
    const uint64_t at = static_cast<uint64_t>(l) * all + p.at;
    std::memcpy(w.local.data() + at, values, bytes);
    for (uint32_t k = 0; k < bytes; ++k) w.local_known[at + k] = defined[k / i.bytes];
  });
}

// Lane l passes the address of row l % 8 of matrix l / 8 and gets two adjacent elements of each.
template <bool transposed> void load_matrices(Warp& w, const Insn& i, Mask m) {
  const Operand base = w.operand(i, 4);
  uint16_t rows[lanes][8];
  each(m, [&](int l) {
    const uint64_t at = address_of(w, i, l, base, w.known_of(base), sizeof rows[l]);
    std::memcpy(rows[l], reading(w, i, l, {Space::Shared, at}, sizeof rows[l]), sizeof rows[l]);
  });
  for (int k = 0; k < 4; ++k) {
    const Operand& d = w.operand(i, k);
    each(m, [&](int l) {
      const int far = l / 4, near = l % 4 * 2, first = k * 8;
      w.row_of(d)[l] = transposed ? rows[first + near][far] | rows[first + near + 1][far] << 16
                                  : rows[first + far][near] | rows[first + far][near + 1] << 16;
    });
    w.define(d, m, all_lanes);
  }
}

// Reads the bytes now and writes them when the copy is waited for. The write is also recorded now,
// so that an access to the target meanwhile is a race; it finds the old bytes.
void copy_async(Warp& w, const Insn& i, Mask m) {
  const Operand to = w.operand(i, 0), from = w.operand(i, 1), taken = w.operand(i, 3);
  const auto bytes = static_cast<uint32_t>(w.row(w.operand(i, 2))[0]);
  each(m, [&](int l) {
    Copy c{l, bytes, address_of(w, i, l, to, w.known_of(to), bytes), {}};
    if (!(w.known_of(taken) >> l & 1)) fail_at(w, i, l, "copies a size that was never written");
    const uint64_t source = w.row(taken)[l];
    if (source != 0 && source != bytes) fail_at(w, i, l, "copies only a part");
    // The address must be valid even if nothing is copied from it.
    const uint64_t at = address_of(w, i, l, from, w.known_of(from), bytes);
    const unsigned char* const there = reading(w, i, l, {Space::Global, at}, bytes);
    if (source) {
      std::memcpy(c.bytes, there, bytes);
      if (!w.block->memory->marks.all(at, bytes)) fail_at(w, i, l, "copies an undefined value");
    }
    expect_inside(w, i, l, "shared memory", c.to, bytes, w.block->shared.size());
    Access other;
    const char* const error = w.block->shared_shadow.write(c.to, bytes, access_of(w, i, l),
                                                           w.block->serial, false, &other);
    if (error) fail_race(w, i, l, error, other, "shared memory", c.to);
    w.copies.push_back(c);
  });
}
void await_copies(Warp& w, const Insn& i, Mask m) {
  std::erase_if(w.copies, [&](const Copy& c) {
    if (!(m >> c.lane & 1)) return false;
    write_common(w, i, c.lane, {Space::Shared, c.to}, c.bytes, c.count);
    return true;
  });
}

}  // namespace

void add_copies(Table& t) {
  t["ldmatrix.sync.aligned.m8n8.x4.shared.b16"] = {load_matrices<false>, Kind::Collective};
  t["ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16"] = {load_matrices<true>, Kind::Collective};
  t["cp.async.ca.shared.global"] = {copy_async};
  t["cp.async.wait_all"] = {await_copies};
}

void copy_local(Warp& w, const Insn& i, Mask m) {
  const uint64_t all = w.local.size() / lanes;
  each(m, [&](int l) {
    const uint64_t to = static_cast<uint64_t>(l) * all + static_cast<uint64_t>(i.offset),
                   from = static_cast<uint64_t>(l) * all + i.target;
    std::memcpy(w.local.data() + to, w.local.data() + from, i.bytes);
    std::memcpy(w.local_known.data() + to, w.local_known.data() + from, i.bytes);
  });
}

bool make_memory(std::string_view mnemonic, Insn& i) {
  const bool loads = mnemonic.starts_with("ld."), stores = mnemonic.starts_with("st.");
  if (!loads && !stores) return false;
  i.run = loads ? load : store;
  i.vector = 1;
  for (size_t from = 3; from <= mnemonic.size();) {
    const size_t dot = std::min(mnemonic.find('.', from), mnemonic.size());
    const std::string_view part = mnemonic.substr(from, dot - from);
    from = dot + 1;
    if (part == "global")
      i.space = Space::Global;
    else if (part == "shared")
      i.space = Space::Shared;
    else if (part == "local")
      i.space = Space::Local;
    else if (part == "param")
      i.space = Space::Parameter;
    else if (part == "volatile" || part == "relaxed")
      i.is_volatile = true;
    else if (part == "nc")
      i.read_only = true;
    else if (part == "v2" || part == "v4")
      i.vector = part == "v2" ? 2 : 4;
    else if (part.size() >= 2 && std::string_view("busf").find(part[0]) != std::string_view::npos) {
      i.is_signed = part[0] == 's';
      i.bytes = static_cast<uint8_t>(std::atoi(part.data() + 1) / 8);
    } else {
      return false;
    }
  }
  return i.bytes > 0;
}

}  // namespace brrr::emulator::ptx
