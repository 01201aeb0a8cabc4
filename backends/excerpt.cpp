#include "backends/excerpt.h"

#include <algorithm>
#include <cctype>

namespace brrr::jit {

namespace {

using Tokens = std::vector<std::string_view>;

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }
bool is_name(std::string_view token) {
  return is_word(token[0]) && !std::isdigit(static_cast<unsigned char>(token[0]));
}

// The length of the token, white space or comment at the start of `text`.
size_t token_length(std::string_view text) {
  const auto up_to = [&](size_t end, size_t length) { return std::min(end, text.size()) + length; };
  size_t n = 1;
  if (text.starts_with("//")) return up_to(text.find('\n'), 0);
  if (text.starts_with("/*")) return std::min(up_to(text.find("*/", 2), 2), text.size());
  if (text[0] == '"' || text[0] == '\'') {
    while (n < text.size() && text[n] != text[0]) n += text[n] == '\\' ? 2 : 1;
    return up_to(n + 1, 0);
  }
  while (is_word(text[0]) && n < text.size() && is_word(text[n])) ++n;
  return n;
}

template <class F> void for_tokens(std::string_view text, const F& f) {
  for (size_t n; !text.empty(); text.remove_prefix(n)) {
    n = token_length(text);
    const bool silent = std::isspace(static_cast<unsigned char>(text[0])) || text[0] == '\\' ||
                        text.starts_with("//") || text.starts_with("/*");
    if (!silent) f(text.substr(0, n));
  }
}

struct Definition {
  std::string_view text;
  Tokens tokens;
  bool is_call() const { return tokens.size() > 1 && tokens[1] == "("; }
};

template <class F> void for_definitions(std::string_view text, const F& f) {
  Definition now;
  int open = 0;
  for (size_t at = 0, begin = 0, end = 0; at < text.size(); at = end) {
    end = std::min(text.find('\n', at), text.size() - 1) + 1;
    const std::string_view line = text.substr(at, end - at);
    for_tokens(line, [&](std::string_view t) {
      open += (t == "{") - (t == "}");
      now.tokens.push_back(t);
    });
    if (now.tokens.empty()) {
      begin = end;
      continue;
    }
    const std::string_view first = now.tokens[0], last = now.tokens.back();
    if (first == "namespace" || first == "}") open = 0;  // A part of its own, like a directive.
    const bool ends = first == "#" || last == ";" || last == "{" || last == "}" || now.is_call();
    if (open > 0 || !ends || line.ends_with("\\\n")) continue;
    now.text = text.substr(begin, end - begin);
    f(now);
    now.tokens.clear();
    begin = end;
  }
}

// The names that a definition's tokens define: functions, types, constants, macros.
Tokens names_defined(const Tokens& tokens) {
  Tokens names;
  if (tokens.empty() || tokens[0] == "namespace") return names;
  const bool defines = tokens.size() > 1 && (tokens[1] == "define" || tokens[1] == "undef");
  if (tokens[0] == "#" && !defines) return names;
  int nested = 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const std::string_view t = tokens[i], before = i ? tokens[i - 1] : "",
                           after = i + 1 < tokens.size() ? tokens[i + 1] : "";
    nested += (t == "(" || t == "[" || t == "{") - (t == ")" || t == "]" || t == "}");
    if (nested > 0 || !is_name(t)) continue;
    const bool introduced =
        before == "struct" || before == "using" || before == "define" || before == "undef";
    if (introduced || after == "(" || after == "{" || after == "=" || after == ";" ||
        after == "__attribute__") {
      names.push_back(t);
    }
  }
  return names;
}

// `#define NAME(parameters) body`
bool is_function_like(const Tokens& t) {
  return t.size() > 3 && t[0] == "#" && t[1] == "define" && t[3] == "(" &&
         t[3].data() == t[2].data() + t[2].size();
}
// The first token of each argument. `at` starts behind the opening parenthesis.
Tokens arguments(const Tokens& tokens, size_t& at) {
  Tokens first;
  bool begins = true;
  for (int nested = 1; at < tokens.size() && nested > 0; ++at) {
    const std::string_view t = tokens[at];
    nested += (t == "(") - (t == ")");
    if (begins && nested > 0) first.push_back(t);
    begins = nested == 1 && t == ",";
  }
  return first;
}

// The names that a macro call defines: those of the macro's body with the arguments substituted.
Tokens names_defined_by(const Tokens& call, const Tokens& macro) {
  if (macro.empty()) return {};
  size_t at = 2, body = 4;
  const Tokens given = arguments(call, at), parameters = arguments(macro, body);
  Tokens names = names_defined({macro.begin() + static_cast<ptrdiff_t>(body), macro.end()});
  for (std::string_view& name : names) {
    const auto k = static_cast<size_t>(std::ranges::find(parameters, name) - parameters.begin());
    if (k < given.size()) name = given[k];
  }
  return names;
}

}  // namespace

Vocabulary::Vocabulary(std::string_view text) {
  std::unordered_map<std::string_view, Tokens> macros;  // Function-like ones, by name.
  for_definitions(text, [&](const Definition& d) {
    if (is_function_like(d.tokens)) macros[d.tokens[2]] = d.tokens;
    const auto part = static_cast<uint32_t>(parts_.size());
    const Tokens names =
        d.is_call() ? names_defined_by(d.tokens, macros[d.tokens[0]]) : names_defined(d.tokens);
    for (std::string_view name : names) defined_[name].push_back(part);
    Tokens uses = d.tokens;
    std::ranges::sort(uses);
    uses.erase(std::unique(uses.begin(), uses.end()), uses.end());
    parts_.push_back({d.text, std::move(uses), names.empty()});
  });
  for (Part& p : parts_) {
    std::erase_if(p.uses, [&](std::string_view name) { return !defined_.contains(name); });
    p.uses.shrink_to_fit();
  }
}

std::string Vocabulary::excerpt(std::string_view kernels) const {
  std::vector<bool> taken(parts_.size());
  std::vector<uint32_t> open;
  const auto take = [&](uint32_t part) {
    if (taken[part]) return;
    taken[part] = true;
    open.push_back(part);
  };
  const auto take_named = [&](std::string_view name) {
    const auto at = defined_.find(name);
    if (at != defined_.end()) std::ranges::for_each(at->second, take);
  };
  for (uint32_t k = 0; k < parts_.size(); ++k) {
    if (parts_[k].always) take(k);
  }
  for_tokens(kernels, take_named);
  while (!open.empty()) {
    const Part& part = parts_[open.back()];
    open.pop_back();
    std::ranges::for_each(part.uses, take_named);
  }
  std::string text;
  for (uint32_t k = 0; k < parts_.size(); ++k) {
    if (taken[k]) text += parts_[k].text;
  }
  return text;
}

}  // namespace brrr::jit
