// Broadcasts text, and checks that all ranks have the same lines, by comparing with rank 0's.
#include <fmt/ranges.h>

#include <sstream>

#include "core/check.h"
#include "models/data_parallel.h"
#include "ops/dist.h"
#include "ops/dist_ops.h"
#include "ops/factory_ops.h"

namespace brrr::dist {

std::string broadcast_text(const std::string& text, int root) {
  const Tensor length = broadcast(full({1}, static_cast<int64_t>(text.size()), kInt64), root);
  const auto n = length.item<int64_t>();
  std::string own = text;
  own.resize(static_cast<size_t>(n));
  const auto all = broadcast(from_blob(own.data(), {n}, kUInt8), root).to_vector<uint8_t>();
  return {all.begin(), all.end()};
}

void check_alike(const std::string& what, const std::vector<std::string>& own) {
  if (size() == 1) return;
  const std::string end(1, '\0');  // Separates lines: a line may contain '\n'.
  std::istringstream first(broadcast_text(fmt::format("{}", fmt::join(own, end)) + end, 0));
  std::string said, line;
  for (size_t k = 0; said.empty(); ++k) {
    const bool more = static_cast<bool>(std::getline(first, line, '\0'));
    if (!more && k == own.size()) break;
    const std::string there = more ? line : "nothing more",
                      here = k < own.size() ? own[k] : "nothing more";
    if (there != here) said = fmt::format("rank 0 has {}, rank {} has {}", there, rank(), here);
  }
  for (int r = 0; r < size(); ++r) {
    const std::string differs = broadcast_text(said, r);
    BRRR_CHECK(differs.empty(), "{} differ: {}", what, differs);
  }
}

}  // namespace brrr::dist
