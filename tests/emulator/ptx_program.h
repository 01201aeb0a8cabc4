#pragma once
// A PTX program in the interpreter's form: one array of instructions with numbered registers.

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tests/emulator/ptx.h"

namespace brrr::emulator::ptx {

inline uint64_t round_up(uint64_t x, uint64_t step) { return (x + step - 1) / step * step; }

constexpr int lanes = 32;
using Mask = uint32_t;  // a bit per lane of a warp
constexpr Mask all_lanes = ~Mask{0};

struct Warp;
struct Insn;
using Run = void (*)(Warp&, const Insn&, Mask);

/// A register by its number, a constant by its row, or a constant predicate (Truth).
struct Operand {
  enum Kind : uint8_t { Register, Predicate, Constant, Truth } kind = Constant;
  uint8_t bits = 64;  // of a register, as declared
  uint32_t at = 0;
};

enum class Kind : uint8_t { Plain, Branch, Call, Return, Exit, BlockBarrier, Collective };
enum class Space : uint8_t { Generic, Global, Shared, Local, Parameter };

struct Insn {
  Run run = nullptr;
  Kind kind = Kind::Plain;
  bool guarded = false, negated = false;
  uint8_t count = 0;                 // number of operands
  uint8_t targets = 1, sources = 1;  // number of operands in the first and the second braced group
  Space space = Space::Generic;
  uint8_t bytes = 0, vector = 1;  // of a memory access: of one element, and how many
  bool is_signed = false, is_volatile = false, read_only = false;
  uint32_t first = 0;  // index of the first operand
  Operand guard;
  uint32_t target = 0;  // of a branch or call
  uint32_t line = 0;    // in the PTX
  int64_t offset = 0;   // of an address; the barrier's number
};

/// The entry of a mnemonic in the instruction table.
struct Op {
  Run run = nullptr;
  Kind kind = Kind::Plain;
};
using Table = std::unordered_map<std::string, Op>;
void add_integer(Table& t);
void add_float(Table& t);
void add_conversions(Table& t);
void add_moves(Table& t);
void add_collectives(Table& t);
void add_copies(Table& t);
/// ld and st, decoded from the parts of their name; false for other instructions.
bool make_memory(std::string_view mnemonic, Insn& i);
const Op* find_op(const std::string& mnemonic);
/// Copies `bytes` bytes at `target` of local memory to `offset`: passes the arguments of calls.
void copy_local(Warp& w, const Insn& i, Mask m);
/// mov with a braced register list on one side.
void pack(Warp& w, const Insn& i, Mask m);
void unpack(Warp& w, const Insn& i, Mask m);

// The special registers, which come first in each warp's register file.
enum Special : uint32_t { tid, ntid = 3, ctaid = 6, nctaid = 9, laneid = 12, specials = 13 };

struct Symbol {
  Space space;
  uint64_t at, bytes;
};

struct Scope {
  std::unordered_map<std::string, Operand> registers;
  std::unordered_map<std::string, std::pair<Operand, uint32_t>> ranges;  // by name without number
  std::unordered_map<std::string, Symbol> symbols;
};

struct Text {
  std::string_view body;
  uint32_t line;
};

struct Routine {
  Text text;
  uint32_t entry = 0;
  std::vector<Symbol> params, results;  // of a function: in local memory
  Scope scope;
};

struct Kernel {
  std::string name;
  Routine routine;
  brrr_emulator::Kernel description{};
  Program* program = nullptr;
  bool ready = false;
  bool waits = false;                          // has barriers
  uint32_t registers = 0, predicates = 0;      // of a warp
  uint64_t shared_bytes = 0, local_bytes = 0;  // static shared memory; local memory of a thread
};

struct GlobalVariable {
  uint64_t begin, bytes;
};

struct Program {
  std::string text;
  std::vector<Insn> code;
  std::vector<Operand> operands;
  std::vector<uint64_t> constants;  // rows of 32
  std::map<uint64_t, uint32_t> constant_rows;
  std::map<std::string, Routine> functions;
  std::map<std::string, Kernel> kernels;
  Scope scope;
  uint32_t registers = specials, predicates = 1;  // of all functions
  uint64_t shared_bytes = 0, local_bytes = 0;
  std::vector<GlobalVariable> variables;
  std::vector<std::unique_ptr<uint64_t[]>> storage;
  std::vector<std::pair<uint32_t, std::string>> calls;  // call instructions and their callees
};

/// Appends a body's instructions to the program.
void parse_body(Program& p, Routine& r, Kernel* kernel);

}  // namespace brrr::emulator::ptx
