// The cost model: limits of kernels, bytes that they move, and what prevents further fusion.
#include "graph/cost.h"

#include <algorithm>
#include <map>

#include "core/check.h"
#include "ops/kinds/pointwise.h"
#include "ops/kinds/work.h"

namespace brrr::graph {

// --- sizes ---------------------------------------------------------------------------------------

bool KernelSize::allowed(int ndim, const Target& target) const {
  // Limits from register pressure and compile time. Sixteen polynomials are unrolled four times;
  // with more, the lost unrolling costs more time than the saved pass over memory.
  constexpr size_t max_instrs = 256, max_in_memory = 32, max_polynomials = 16;
  return instrs <= max_instrs && in_memory <= max_in_memory && polynomials <= max_polynomials &&
         (!target.takes || target.takes(in_memory, scalars, ndim));
}

KernelSize kernel_size(const Recording& r, const Schedule& s, uint32_t g, uint32_t h) {
  KernelSize size;
  std::map<uint32_t, std::vector<uint32_t>> used;  // By storage: a value per access.
  for (uint32_t group : {g, h}) {
    for (uint32_t at : s.groups[group].instrs) {
      const Instr& i = r.instrs[at];
      ++size.instrs;
      size.polynomials += polynomials(r, i);
      size.scalars += static_cast<size_t>(std::ranges::count(r.in(i), kNone));
    }
    r.each_access(s.groups[group].instrs,
                  [&](const Access& a) { used[r.value(a.value).storage].push_back(a.value); });
  }
  for (auto& [st, values] : used) {
    const bool others = values.size() < r.accesses[st].size();
    if (others || r.lasting[st]) size.in_memory += distinct(values).size();
  }
  return size;
}

size_t polynomials(const Recording& r, const Instr& i) {
  size_t conversions = 0;
  r.each_operand(i, [&](uint32_t value, bool) {
    const DType t = r.value(value).dtype;
    conversions += t == kFloat16 || t == kBFloat16;
  });
  return polynomials_of(*i.op) + (conversions + 1) / 2;
}

// The number of elements that a kernel walks before it starts another row: the innermost dims that
// each operand walks with a single stride.
static int64_t run_length(const Recording& r, const std::vector<uint32_t>& instrs,
                          const Domain& w) {
  const int64_t numel = numel_of(w.space);
  if (w.row) return w.row;
  int64_t run = numel;
  r.each_access(instrs, [&](const Access& a) {
    const Value& v = r.value(a.value);
    if (!v.strided && v.numel == numel) return;
    int64_t inner = 1, next = -1;
    for (int d = w.space.size() - 1; d >= 0; --d) {
      if (w.space[d] == 1) continue;
      const int64_t stride = v.stride_along(d, w.space.size());
      if (next >= 0 && stride != next) break;
      inner *= w.space[d];
      next = stride * w.space[d];
    }
    run = std::min(run, inner);
  });
  return run;
}

bool splits_draws(const Recording& r, const Target& target, const Group& g, const Group& h,
                  const Domain& merged) {
  const auto draws = [&](const Group& x) {
    return std::ranges::any_of(x.instrs, [&](uint32_t at) {
      const PointwiseInfo* const info = r.instrs[at].op->pointwise;
      return info && std::count(info->place, info->place + info->n_made, kNumber) > 0;
    });
  };
  const auto whole = [&](const std::vector<uint32_t>& instrs, const Domain& w) {
    const int64_t run = run_length(r, instrs, w);
    return run % target.draw_block == 0 || run == numel_of(w.space);
  };
  const bool first = draws(g), second = draws(h);
  if (!first && !second) return false;
  std::vector<uint32_t> both = g.instrs;
  both.insert(both.end(), h.instrs.begin(), h.instrs.end());
  return !whole(both, merged) &&
         ((first && whole(g.instrs, g.domain)) || (second && whole(h.instrs, h.domain)));
}

bool mixes_checks(const Recording& r, const Group& g, const Group& h) {
  std::vector<uint32_t> all;
  std::ranges::set_union(g.instrs, h.instrs, std::back_inserter(all));
  std::erase_if(all, [&](uint32_t at) {
    const Instr& i = r.instrs[at];
    return !i.op->check_values || r.storages[r.value(r.out(i)[0]).storage].device == kCPU;
  });
  // Fault records name the first; others are fine if one of that name checks their ids, too.
  const auto named = [&](uint32_t at) {
    const Instr &i = r.instrs[at], &first = r.instrs[all[0]];
    return i.op == first.op && r.paths[i.path] == r.paths[first.path];
  };
  const auto same = [&](uint32_t x, uint32_t y) { return r.value(x).same_elements(r.value(y)); };
  const auto is_checked_by = [&](uint32_t at, uint32_t other) {
    return named(other) && std::ranges::equal(checked_values(r, r.instrs[at]),
                                              checked_values(r, r.instrs[other]), same);
  };
  return !std::ranges::all_of(all, [&](uint32_t at) {
    return named(at) || std::ranges::any_of(all, [&](uint32_t x) { return is_checked_by(at, x); });
  });
}

// --- bytes ---------------------------------------------------------------------------------------

std::string bytes_text(double n) {
  if (n >= 10 << 20) return fmt::format("{:.1f} MiB", n / (1 << 20));
  if (n >= 10 << 10) return fmt::format("{:.1f} KiB", n / (1 << 10));
  return fmt::format("{:.0f} bytes", n);
}

double group_bytes_unfused(const Recording& r, const Group& g) {
  double bytes = 0;
  for (uint32_t at : g.instrs) {
    std::vector<uint32_t> read;  // An operand given twice is read once.
    r.each_operand(r.instrs[at], [&](uint32_t value, bool write) {
      if (!write && std::ranges::find(read, value) != read.end()) return;
      if (!write) read.push_back(value);
      bytes += memory_bytes(r.value(value));
    });
  }
  return bytes;
}

// --- neighbours ----------------------------------------------------------------------------------

static std::string space_text(const Domain& d) {
  return to_string(d.space) + (d.row ? fmt::format(" by rows of {}", d.row) : "");
}

// Whether it is a single reduction or row op that no generated kernel can take.
static bool folds_alone(const Recording& r, const Group& g) {
  const OpDef& op = *r.instrs[g.instrs[0]].op;
  return g.parts.empty() && (op.reduction || op.row);
}

static std::string reason(const Recording& r, const Schedule& s, const Target& target, uint32_t a,
                          uint32_t b) {
  if (folds_alone(r, s.groups[a]) || folds_alone(r, s.groups[b])) {
    return "this fold cannot be fused: integers, dims that are not adjacent, or rows too short, "
           "too "
           "long or too few";
  }
  const Part &x = s.groups[a].parts[0], &y = s.groups[b].parts[0];
  Domain domain;
  if (!join(r, target, x.instrs, y.instrs, x.domain, y.domain, domain)) {
    return fmt::format("one iterates over {}, the other over {}", space_text(x.domain),
                       space_text(y.domain));
  }
  if (!passes(r, s, a, b, domain)) {
    return "it reads a result that is complete only after the last row, or other elements than are "
           "at "
           "hand there";
  }
  if (splits_draws(r, target, s.groups[a], s.groups[b], domain)) {
    return fmt::format("it draws random numbers, and its rows are not a multiple of {}",
                       target.draw_block);
  }
  if (mixes_checks(r, s.groups[a], s.groups[b])) {
    return "both check indices, and a kernel's error report names one call";
  }
  const KernelSize size = kernel_size(r, s, a, b);
  if (!size.allowed(domain.space.size(), target)) {
    return fmt::format("one kernel would hold {} ops, {} operands in memory, {} long polynomials",
                       size.instrs, size.in_memory, size.polynomials);
  }
  return fmt::format("kernels between them would be delayed, or more than {} kept alive longer",
                     bytes_text(kNegligibleBytes));
}

std::string why_not_fused(const Recording& r, const Schedule& s, const Target& target, uint32_t b) {
  // Includes a group left to the library's kernel only because nothing was fused with it.
  const auto one_part = [&](uint32_t g) { return s.groups[g].parts.size() == 1; };
  const bool folds = folds_alone(r, s.groups[b]);
  if (!one_part(b) && !folds) return "";
  uint32_t from = kNone;
  std::vector<uint32_t> passed;  // Values.
  r.each_access(s.groups[b].instrs, [&](const Access& read) {
    for (const Access& x : r.accesses[r.value(read.value).storage]) {
      const uint32_t a = s.group_of[x.instr];
      if (read.write || !x.write || a >= b || !r.conflict(read, x)) continue;
      if (!one_part(a) && (folds || !folds_alone(r, s.groups[a]))) continue;
      if (from != kNone && a < from) continue;
      if (a != from) passed.clear();
      from = a;
      passed.push_back(read.value);
    }
  });
  if (from == kNone) return "";
  double bytes = 0;
  for (uint32_t value : distinct(passed)) bytes += memory_bytes(r.value(value));
  return fmt::format("not fused with {}, {} between them: {}", group_name(r, s.groups[from]),
                     bytes_text(bytes), reason(r, s, target, from, b));
}

}  // namespace brrr::graph
