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

// Lists at most the first few names: a hostile file could have millions.
static void list(std::string& text, const char* label, const std::vector<std::string>& items) {
  constexpr size_t kMaxListed = 10;
  if (items.empty()) return;
  const std::span first(items.data(), std::min(items.size(), kMaxListed));
  text += fmt::format("\n  {}: {}", label, fmt::join(first, ", "));
  if (items.size() > kMaxListed) text += fmt::format(" and {} more", items.size() - kMaxListed);
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
  // All allocations come before the first write. Sources that share memory with a target, perhaps
  // under another name, are cloned; others are not, so that loading an in-memory checkpoint takes
  // no extra memory.
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

void check_same_values(const std::string& what, const char* kind, const StateDict& mine,
                       const StateDict& dict,
                       const std::vector<std::pair<const char*, const char*>>& names) {
  check_state(what, {mine.begin(), mine.end()}, dict, true);
  for (const auto& [name, called] : names) {
    const int64_t saved = dict.at(name).item<int64_t>(), now = mine.at(name).item<int64_t>();
    BRRR_CHECK(saved == now, "{}: the saved {} is {}, this {}'s is {}; the batches would differ",
               what, called, saved, kind, now);
  }
}

Tensor number(double v) { return full({}, v, kFloat64, kCPU); }
Tensor number(int64_t v) { return full({}, v, kInt64, kCPU); }

}  // namespace brrr
