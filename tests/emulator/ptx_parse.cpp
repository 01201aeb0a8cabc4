// Parses a program's text: variables, functions, kernels. Bodies of kernels are parsed when the
// kernel is looked up, those of functions before.

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "core/check.h"
#include "tests/emulator/ptx_program.h"

namespace brrr::emulator::ptx {

namespace {

constexpr std::string_view spaces = " \t\r\n", name_end = " \t\r\n,;[](){}=<>|";

// Splits top-level text into tokens.
class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  std::string_view word() {
    skip();
    if (at_ >= text_.size()) return {};
    const size_t from = at_;
    if (name_end.find(text_[at_]) != name_end.npos) return text_.substr(at_++, 1);
    at_ = std::min(text_.find_first_of(name_end, at_), text_.size());
    return text_.substr(from, at_ - from);
  }
  std::string_view peek() {
    const size_t at = at_;
    const uint32_t line = line_;
    const std::string_view found = word();
    at_ = at;
    line_ = line;
    return found;
  }
  void expect(std::string_view what) {
    const std::string_view found = word();
    if (found != what) fail("PTX line {}: {} where {} is expected", line_, found, what);
  }
  // The text from behind an opening brace to the closing one.
  Text body() {
    const size_t from = at_;
    const uint32_t line = line_;
    for (int depth = 1; depth > 0;) {
      const std::string_view w = word();
      if (w.empty()) fail("PTX line {}: a body does not end", line);
      depth += w == "{" ? 1 : w == "}" ? -1 : 0;
    }
    return {text_.substr(from, at_ - 1 - from), line};
  }
  uint32_t line() const { return line_; }

 private:
  void skip() {
    for (; at_ < text_.size(); ++at_) {
      if (text_.substr(at_, 2) == "//") at_ = std::min(text_.find('\n', at_), text_.size() - 1);
      if (spaces.find(text_[at_]) == spaces.npos) return;
      line_ += text_[at_] == '\n';
    }
  }
  std::string_view text_;
  size_t at_ = 0;
  uint32_t line_ = 1;
};

uint64_t number(std::string_view word) {
  const std::string text(word);
  if (text.starts_with("0f") || text.starts_with("0d")) {
    return std::strtoull(text.c_str() + 2, nullptr, 16);
  }
  return text[0] == '-' ? static_cast<uint64_t>(std::strtoll(text.c_str(), nullptr, 0))
                        : std::strtoull(text.c_str(), nullptr, 0);
}

struct Declared {
  std::string name;
  uint64_t align = 1, bytes = 0, element = 0;
};

// Parses `.align N .b8 name[n]`: alignment, element size, name and size.
Declared declared(Reader& r) {
  Declared d;
  for (std::string_view w = r.word();; w = r.word()) {
    if (w == ".align") {
      d.align = number(r.word());
    } else if (w[0] == '.' && w.size() > 2 && std::isdigit(w[2])) {
      d.element = number(w.substr(2)) / 8;
    } else if (w[0] != '.') {
      d.name = w;
      break;
    }
  }
  d.bytes = d.element;
  d.align = std::max(d.align, d.element);
  if (r.peek() == "[") {
    r.word();
    const std::string_view n = r.word();
    d.bytes = n == "]" ? 0 : d.element * number(n);
    if (n != "]") r.expect("]");
  }
  return d;
}

void global_variable(Program& p, Reader& r) {
  const Declared d = declared(r);
  auto& storage = p.storage.emplace_back(std::make_unique<uint64_t[]>(d.bytes / 8 + 16));
  const auto begin = round_up(reinterpret_cast<uint64_t>(storage.get()), 64);
  if (r.peek() == "=") {
    auto* to = reinterpret_cast<unsigned char*>(begin);
    for (std::string_view w = r.word(); w != ";"; w = r.word()) {
      if (w == "{" || w == "}" || w == "," || w == "=") continue;
      const uint64_t value = number(w);
      std::memcpy(to, &value, d.element);
      to += d.element;
    }
  } else {
    r.expect(";");
  }
  p.variables.push_back({begin, d.bytes});
  p.scope.symbols[d.name] = {Space::Global, begin, d.bytes};
}

void shared_variable(Program& p, Reader& r) {
  const Declared d = declared(r);
  r.expect(";");
  // An array without a size (dynamic) starts behind all others; each kernel computes where.
  const bool dynamic = d.bytes == 0;
  const uint64_t at = dynamic ? ~uint64_t{0} : round_up(p.shared_bytes, d.align);
  if (!dynamic) p.shared_bytes = at + d.bytes;
  p.scope.symbols[d.name] = {Space::Shared, at, d.bytes};
}

// Parses a parenthesised parameter list and lays it out from offset `at`, which moves to its end.
std::vector<Symbol> parameters(Reader& r, Space space, uint64_t& at, Scope& scope) {
  std::vector<Symbol> found;
  r.expect("(");
  while (r.peek() != ")") {
    if (r.peek() == ",") r.word();
    const Declared d = declared(r);
    at = round_up(at, d.align);
    found.push_back({space, at, d.bytes});
    scope.symbols[d.name] = found.back();
    at += d.bytes;
  }
  r.expect(")");
  return found;
}

void function(Program& p, Reader& r) {
  Scope scope;
  uint64_t at = p.local_bytes;
  std::vector<Symbol> results;
  if (r.peek() == "(") results = parameters(r, Space::Local, at, scope);
  const std::string name(r.word());
  const auto params = parameters(r, Space::Local, at, scope);
  std::string_view end = r.word();
  while (end != ";" && end != "{") end = r.word();
  Routine& f = p.functions[name];
  f.params = params;  // a definition follows its declaration and replaces these
  f.results = results;
  f.scope = scope;
  p.local_bytes = round_up(at, 16);
  if (end == "{") f.text = r.body();
}

void entry(Program& p, Reader& r) {
  const std::string name(r.word());
  Kernel& k = p.kernels[name];
  k.name = name;
  k.program = &p;
  uint64_t bytes = 0;
  parameters(r, Space::Parameter, bytes, k.routine.scope);
  k.description = {k.name.c_str(), 1024, bytes, nullptr, nullptr};
  for (std::string_view w = r.word(); w != "{"; w = r.word()) {
    if (w != ".maxntid") continue;
    uint64_t threads = number(r.word());  // one to three dimensions
    while (r.peek() == ",") {
      r.word();
      threads *= number(r.word());
    }
    k.description.most_threads = static_cast<unsigned>(threads);
  }
  k.routine.text = r.body();
}

void parse_top(Program& p) {
  Reader r(p.text);
  for (std::string_view w = r.word(); !w.empty(); w = r.word()) {
    if (w == ".version" || w == ".target" || w == ".address_size") {
      r.word();
      while (r.peek() == ",") r.word(), r.word();
    } else if (w == ".global" || w == ".const") {
      global_variable(p, r);
    } else if (w == ".shared") {
      shared_variable(p, r);
    } else if (w == ".func") {
      function(p, r);
    } else if (w == ".entry") {
      entry(p, r);
    } else if (w != ".visible" && w != ".extern" && w != ".weak" && w != ".common") {
      fail("PTX line {}: unknown directive {}", r.line(), w);
    }
  }
}

}  // namespace

namespace {

void link_calls(Program& p) {
  for (const auto& [insn, name] : p.calls) {
    const Routine& f = p.functions.at(name);
    if (f.text.body.empty()) fail("PTX: the function {} has no body", name);
    p.code[insn].target = f.entry;
  }
  p.calls.clear();
}

}  // namespace

bool is_ptx(const void* image, size_t bytes) {
  return std::string_view(static_cast<const char*>(image), bytes).starts_with("//");
}

std::shared_ptr<Program> parse(const void* image, size_t bytes) {
  auto p = std::make_shared<Program>();
  p->text.assign(static_cast<const char*>(image), bytes);
  p->text.resize(std::min(p->text.find('\0'), p->text.size()));
  parse_top(*p);
  // Functions come before kernels, as the scheduler runs lanes with the smallest address first.
  for (auto& [name, f] : p->functions) {
    if (!f.text.body.empty()) parse_body(*p, f, nullptr);
  }
  link_calls(*p);
  return p;
}

const Kernel* find_kernel(Program& p, const char* name) {
  const auto it = p.kernels.find(name);
  if (it == p.kernels.end()) return nullptr;
  Kernel& k = it->second;
  if (!std::exchange(k.ready, true)) {
    parse_body(p, k.routine, &k);
    link_calls(p);
  }
  return &k;
}

const brrr_emulator::Kernel& description(const Kernel& kernel) { return kernel.description; }

}  // namespace brrr::emulator::ptx
