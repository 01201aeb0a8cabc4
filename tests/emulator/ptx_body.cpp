// The body of a function or kernel: declarations, labels and instructions.

#include <algorithm>
#include <cstdlib>

#include "core/check.h"
#include "tests/emulator/ptx_program.h"

namespace brrr::emulator::ptx {

namespace {

constexpr std::string_view spaces = " \t\r\n", name_end = " \t\r\n,;[](){}|+:=<>";

class Body {
 public:
  Body(Program& p, Routine& r, Kernel* kernel)
      : p_(p), kernel_(kernel), text_(r.text.body), line_(r.text.line), scopes_(1) {
    registers_ = p.registers;
    predicates_ = p.predicates;
    local_ = most_local_ = p.local_bytes;
    shared_ = p.shared_bytes;
    outer_ = {&r.scope, &p.scope};
  }

  void parse() {
    while (skip()) statement();
    Insn end;
    end.kind = Kind::Return;
    end.line = line_;
    p_.code.push_back(end);
    for (const auto& [insn, label] : jumps_) {
      const auto it = labels_.find(label);
      if (it == labels_.end()) fail("PTX: no label {}", label);
      p_.code[insn].target = it->second;
    }
    if (!kernel_) {
      p_.registers = registers_;
      p_.predicates = predicates_;
      p_.local_bytes = round_up(most_local_, 16);
      p_.shared_bytes = shared_;
      return;
    }
    kernel_->registers = registers_;
    kernel_->predicates = predicates_;
    kernel_->local_bytes = round_up(most_local_, 16);
    kernel_->shared_bytes = shared_;
    kernel_->waits = waits_;
  }

 private:
  // --- tokens ---
  bool skip() {
    for (; at_ < text_.size(); ++at_) {
      if (text_.compare(at_, 2, "//") == 0) at_ = std::min(text_.find('\n', at_), text_.size() - 1);
      if (spaces.find(text_[at_]) == spaces.npos) return true;
      line_ += text_[at_] == '\n';
    }
    return false;
  }
  char next() {
    skip();
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  bool take(char c) {
    if (next() != c) return false;
    ++at_;
    return true;
  }
  std::string word() {
    skip();
    const size_t from = at_;
    at_ = std::min(text_.find_first_of(name_end, at_), text_.size());
    return std::string(text_.substr(from, at_ - from));
  }
  [[noreturn]] void wrong(const std::string& what) { fail("PTX line {}: {}", line_, what); }

  // --- statements ---
  void statement() {
    if (take('{')) {
      scopes_.emplace_back();
      outer_locals_.push_back(local_);
    } else if (take('}')) {
      scopes_.pop_back();
      local_ = outer_locals_.back();
      outer_locals_.pop_back();
    } else if (take(';')) {
    } else if (next() == '.') {
      directive();
    } else if (next() == '@') {
      ++at_;
      Insn i;
      i.guarded = true;
      i.negated = take('!');
      i.guard = named(word());
      instruction(word(), i);
    } else {
      const std::string w = word();
      if (take(':'))
        labels_[w] = static_cast<uint32_t>(p_.code.size());
      else
        instruction(w, Insn());
    }
  }

  void directive() {
    const std::string w = word();
    if (w == ".reg") return declare_registers();
    if (w == ".local" || w == ".shared" || w == ".param") return declare_memory(w);
    while (!take(';')) ++at_;  // .pragma, .loc
  }

  void declare_registers() {
    const std::string type = word();
    Operand o{Operand::Register, 0, 0};
    if (type == ".pred")
      o.kind = Operand::Predicate;
    else
      o.bits = static_cast<uint8_t>(std::atoi(type.c_str() + 2));
    do {
      const std::string name = word();
      uint32_t count = 1;
      const bool many = take('<');
      if (many) {
        count = static_cast<uint32_t>(std::atoi(word().c_str()));
        take('>');
      }
      uint32_t& first = o.kind == Operand::Predicate ? predicates_ : registers_;
      o.at = first;
      first += count;
      if (many)
        scopes_.back().ranges[name] = {o, count};
      else
        scopes_.back().registers[name] = o;
    } while (take(','));
    take(';');
  }

  void declare_memory(const std::string& where) {
    uint64_t align = 1, element = 1;
    std::string w = word();
    for (; w[0] == '.'; w = word()) {
      if (w == ".align")
        align = std::strtoull(word().c_str(), nullptr, 10);
      else
        element = std::strtoull(w.c_str() + 2, nullptr, 10) / 8;
    }
    uint64_t bytes = element;
    if (take('[')) {
      bytes = element * std::strtoull(word().c_str(), nullptr, 10);
      take(']');
    }
    take(';');
    const bool shared = where == ".shared";
    uint64_t& end = shared ? shared_ : local_;
    end = round_up(end, std::max(align, element));
    scopes_.back().symbols[w] = {shared ? Space::Shared : Space::Local, end, bytes};
    end += bytes;
    most_local_ = std::max(most_local_, local_);
  }

  // --- operands ---
  const Symbol* symbol(const std::string& name) {
    for (auto s = scopes_.rbegin(); s != scopes_.rend(); ++s) {
      if (const auto it = s->symbols.find(name); it != s->symbols.end()) return &it->second;
    }
    for (Scope* s : outer_) {
      const auto it = s->symbols.find(name);
      if (it == s->symbols.end()) continue;
      if (it->second.at == ~uint64_t{0}) {  // dynamic shared memory
        shared_ = round_up(shared_, 16);
        dynamic_ = {Space::Shared, shared_, 0};
        return &dynamic_;
      }
      return &it->second;
    }
    return nullptr;
  }

  bool find_register(const std::string& name, Operand& o) {
    const size_t digits = name.find_last_not_of("0123456789") + 1;
    const std::string prefix = name.substr(0, digits);
    const auto number = static_cast<uint32_t>(std::atoi(name.c_str() + digits));
    for (auto s = scopes_.rbegin(); s != scopes_.rend(); ++s) {
      if (const auto it = s->registers.find(name); it != s->registers.end()) {
        o = it->second;
        return true;
      }
      if (digits == name.size()) continue;
      const auto it = s->ranges.find(prefix);
      if (it == s->ranges.end() || number >= it->second.second) continue;
      o = it->second.first;
      o.at += number;
      return true;
    }
    return false;
  }

  Operand special(const std::string& name) {
    const std::pair<const char*, uint32_t> known[] = {
        {"%tid.", tid}, {"%ntid.", ntid}, {"%ctaid.", ctaid}, {"%nctaid.", nctaid}};
    for (const auto& [prefix, first] : known) {
      if (!name.starts_with(prefix)) continue;
      return {Operand::Register, 32, first + static_cast<uint32_t>(name.back() - 'x')};
    }
    if (name == "%laneid") return {Operand::Register, 32, laneid};
    wrong("no register " + name);
  }

  Operand constant(uint64_t value) {
    const auto [it, added] =
        p_.constant_rows.try_emplace(value, static_cast<uint32_t>(p_.constants.size() / lanes));
    if (added) p_.constants.insert(p_.constants.end(), lanes, value);
    return {Operand::Constant, 64, it->second};
  }

  Operand named(const std::string& w) {
    if (w.empty()) wrong("an operand is expected");
    if (w[0] == '-' || std::isdigit(w[0])) {
      if (truths_) return {Operand::Truth, 1, w != "0"};
      if (w[0] == '0' && w.size() > 1 && (w[1] == 'f' || w[1] == 'd')) {
        return constant(std::strtoull(w.c_str() + 2, nullptr, 16));
      }
      return constant(w[0] == '-' ? static_cast<uint64_t>(std::strtoll(w.c_str(), nullptr, 0))
                                  : std::strtoull(w.c_str(), nullptr, 0));
    }
    Operand o;
    if (w == "_") return {Operand::Register, 64, registers_++};
    if (find_register(w, o)) return o;
    if (w[0] == '%') return special(w);
    if (const Symbol* s = symbol(w)) return constant(s->at);
    wrong("no register or variable " + w);
  }

  void address(Insn& i) {
    const std::string base = word();
    const Symbol* s = base[0] == '%' ? nullptr : symbol(base);
    if (i.space == Space::Parameter && (s ? s->space == Space::Local : !kernel_)) {
      i.space = Space::Local;
    }
    p_.operands.push_back(named(base));
    if (take('+')) i.offset = std::strtoll(word().c_str(), nullptr, 0);
    if (!take(']')) wrong("] is expected");
  }

  void operands(Insn& i) {
    i.first = static_cast<uint32_t>(p_.operands.size());
    std::vector<uint8_t> groups;
    while (!take(';')) {
      const size_t before = p_.operands.size();
      if (take(',') || take('|')) continue;
      if (take('{')) {
        while (!take('}')) {
          if (!take(',')) p_.operands.push_back(named(word()));
        }
      } else if (take('[')) {
        address(i);
      } else {
        p_.operands.push_back(named(word()));
      }
      groups.push_back(static_cast<uint8_t>(p_.operands.size() - before));
    }
    i.count = static_cast<uint8_t>(p_.operands.size() - i.first);
    if (!groups.empty()) i.targets = groups[0];
    if (groups.size() > 1) i.sources = groups[1];
  }

  // Rejects a selp of -0 and 1 or -1, which ptxas (as of 13.0) compiles as one of 0 and 1 or -1.
  void reject_lost_sign(const Insn& i) {
    const auto value = [&](uint32_t k) {
      const Operand& o = p_.operands[i.first + k];
      return o.kind == Operand::Constant ? p_.constants[o.at * lanes] : 0;
    };
    constexpr uint64_t minus_zero = 0x80000000, one = 0x3f800000;
    for (const uint32_t k : {1u, 2u}) {
      if (value(k) == minus_zero && (value(3 - k) & ~minus_zero) == one) {
        wrong("a choice between -0 and 1 or -1, of which ptxas loses the zero's sign");
      }
    }
  }

  // --- instructions ---
  void instruction(const std::string& mnemonic, Insn i) {
    i.line = line_;
    if (mnemonic == "call" || mnemonic == "call.uni") return call(i);
    if (!make_memory(mnemonic, i)) {
      const Op* op = find_op(mnemonic);
      if (!op) wrong("the interpreter has no instruction " + mnemonic);
      i.run = op->run;
      i.kind = op->kind;
    }
    if (i.kind == Kind::Branch) {
      jumps_.emplace_back(static_cast<uint32_t>(p_.code.size()), word());
      take(';');
    } else if (i.kind == Kind::BlockBarrier) {
      i.offset = std::strtoll(word().c_str(), nullptr, 0);
      if (!take(';')) wrong("a barrier of some threads only");
      waits_ = true;
    } else {
      truths_ = mnemonic.ends_with(".pred");
      operands(i);
      truths_ = false;
      if (mnemonic.starts_with("mov.") && (i.targets > 1 || i.sources > 1)) {
        i.run = i.targets > 1 ? unpack : pack;
      }
      if (mnemonic == "selp.f32") reject_lost_sign(i);
    }
    p_.code.push_back(i);
  }

  std::vector<std::string> list() {
    std::vector<std::string> names;
    if (!take('(')) return names;
    while (!take(')')) {
      if (!take(',')) names.push_back(word());
    }
    take(',');
    return names;
  }

  void copy(Insn i, const Symbol& to, const Symbol& from) {
    i.run = copy_local;
    i.offset = static_cast<int64_t>(to.at);
    i.target = static_cast<uint32_t>(from.at);
    i.bytes = static_cast<uint8_t>(from.bytes);
    p_.code.push_back(i);
  }

  void call(Insn i) {
    const std::vector<std::string> results = list();
    const std::string name = word();
    take(',');
    const std::vector<std::string> params = list();
    take(';');
    const auto it = p_.functions.find(name);
    if (it == p_.functions.end()) wrong("no function " + name);
    const Routine& f = it->second;
    if (f.params.size() != params.size() || f.results.size() != results.size()) {
      wrong("a call with another number of arguments than " + name + " takes");
    }
    for (size_t k = 0; k < params.size(); ++k) copy(i, f.params[k], *symbol(params[k]));
    Insn jump = i;
    jump.kind = Kind::Call;
    p_.calls.emplace_back(static_cast<uint32_t>(p_.code.size()), name);
    p_.code.push_back(jump);
    for (size_t k = 0; k < results.size(); ++k) copy(i, *symbol(results[k]), f.results[k]);
  }

  Program& p_;
  Kernel* kernel_;
  std::string_view text_;
  size_t at_ = 0;
  uint32_t line_;
  std::vector<Scope> scopes_;
  std::vector<Scope*> outer_;
  std::vector<uint64_t> outer_locals_;
  uint32_t registers_, predicates_;
  uint64_t local_, most_local_, shared_;
  Symbol dynamic_{};
  bool waits_ = false, truths_ = false;
  std::unordered_map<std::string, uint32_t> labels_;
  std::vector<std::pair<uint32_t, std::string>> jumps_;
};

}  // namespace

void parse_body(Program& p, Routine& r, Kernel* kernel) {
  r.entry = static_cast<uint32_t>(p.code.size());
  Body(p, r, kernel).parse();
}

}  // namespace brrr::emulator::ptx
