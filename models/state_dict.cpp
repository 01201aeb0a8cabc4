#include "models/state_dict.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <span>

#include "core/address_set.h"
#include "core/check.h"
#include "core/tensor_impl.h"
#include "core/text.h"
#include "ops/factory_ops.h"

namespace brrr {

StateDict detached(const std::vector<NamedTensor>& tensors) {
  StateDict dict;
  for (const auto& [name, t] : tensors) dict[name] = t.detach();
  return dict;
}

// A hostile file could list millions of names; the first few say enough.
static void list(std::string& text, const char* label, const std::vector<std::string>& items) {
  constexpr size_t kMost = 10;
  if (items.empty()) return;
  const std::span first(items.data(), std::min(items.size(), kMost));
  text += fmt::format("\n  {}: {}", label, fmt::join(first, ", "));
  if (items.size() > kMost) text += fmt::format(" and {} more", items.size() - kMost);
}

void check_state(const std::string& what, const std::vector<NamedTensor>& targets,
                 const StateDict& dict, bool strict) {
  std::vector<std::string> missing, unexpected, mismatched;
  std::set<std::string> known;
  for (const auto& [name, target] : targets) {
    known.insert(name);
    const auto it = dict.find(name);
    if (it == dict.end()) {
      missing.push_back(shown(name));
      continue;
    }
    const Tensor& source = it->second;
    if (source.defined() && source.sizes() == target.sizes() && source.dtype() == target.dtype()) {
      continue;
    }
    mismatched.push_back(
        fmt::format("{} (is {}, expected {})", shown(name), describe(source), describe(target)));
  }
  for (const auto& [name, t] : dict) {
    if (!known.count(name)) unexpected.push_back(shown(name));
  }
  if (!strict) missing.clear(), unexpected.clear();
  if (missing.empty() && unexpected.empty() && mismatched.empty()) return;
  std::string text;
  list(text, "missing", missing);
  list(text, "unexpected", unexpected);
  list(text, "mismatched", mismatched);
  fail("{}: the state does not fit; nothing was loaded{}", what, text);
}

void copy_state(const std::vector<NamedTensor>& targets, const StateDict& dict) {
  NoGradGuard guard;
  AddressSet written;
  for (const auto& [name, target] : targets) written.insert(target.impl()->storage);
  // Everything that may run out of memory comes before the first write. Copies also make a dict
  // right that shares memory with the targets under other names; without need there are none, so
  // that a checkpoint in memory is loaded whole.
  std::vector<std::pair<Tensor, Tensor>> work;
  for (const auto& [name, target] : targets) {
    const auto it = dict.find(name);
    if (it == dict.end()) continue;
    const Tensor source = it->second.detach().to(target.device());
    const bool shared = written.contains(source.impl()->storage);
    work.emplace_back(target, shared ? source.clone() : source);
  }
  for (const auto& [target, source] : work) target.copy_(source);
}

void check_same_numbers(const std::string& what, const char* kind, const StateDict& mine,
                        const StateDict& dict,
                        const std::vector<std::pair<const char*, const char*>>& names) {
  check_state(what, {mine.begin(), mine.end()}, dict, true);
  for (const auto& [name, called] : names) {
    const int64_t saved = dict.at(name).item<int64_t>(), now = mine.at(name).item<int64_t>();
    BRRR_CHECK(saved == now,
               "{}: the saved {} is {}, this {}'s is {}; the batches would not be the same", what,
               called, saved, kind, now);
  }
}

Tensor number(double v) { return full({}, v, kFloat64, kCPU); }
Tensor number(int64_t v) { return full({}, v, kInt64, kCPU); }

}  // namespace brrr
