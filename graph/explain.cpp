// Reports for people: the summary of a step, its kernels' source and its graph in DOT.
#include "core/check.h"
#include "core/text.h"
#include "graph/core.h"
#include "graph/cost.h"

namespace brrr::graph {

static std::string rematerialised_text(const Plan& plan, const StepOptions& options) {
  const Rematerialised& remat = plan.rematerialised();
  std::string t;
  if (remat.instrs) {
    t = fmt::format("\n  {} ops recompute values instead of keeping them", remat.instrs);
    if (remat.bytes > 0) t += fmt::format("; saves {} of memory traffic", bytes_text(remat.bytes));
  }
  if (options.memory_budget > 0) {
    const size_t budget = budget_bytes(options, remat.arena_before);
    t += fmt::format(
        "\n  memory budget {}: temporaries peak at {} ({} without it), workspaces not counted{}",
        bytes_text(budget), bytes_text(remat.arena), bytes_text(remat.arena_before),
        remat.arena > budget ? "; nothing more can be recomputed" : "");
  } else if (remat.arena < remat.arena_before) {
    t += fmt::format("; temporaries take {} instead of {}", bytes_text(remat.arena),
                     bytes_text(remat.arena_before));
  }
  if (remat.ahead) {
    t += fmt::format(
        "\n  {} derivatives are computed in forward, so that their operands are not kept",
        remat.ahead);
  }
  return t;
}

static std::string pitched_text(const Recording& r) {
  size_t n = 0, bytes = 0;
  for (const StorageInfo& st : r.storages) {
    n += st.row != 0;
    bytes += st.row != 0 ? st.bytes : 0;
  }
  if (n == 0) return "";
  return fmt::format(
      "\n  {} temporaries, {}, have padded rows, which the library takes without a copy", n,
      bytes_text(bytes));
}

// What precedes the first kernel of a strip.
static std::string strip_text(const Recording& r, const Schedule& s, uint32_t group) {
  const Strip* const strip = s.strips.of(group);
  if (!strip || strip->first != group) return "";
  const auto number = static_cast<uint32_t>(strip - s.strips.all.data());
  size_t bytes = 0;
  for (uint32_t st = 0; st < r.storages.size(); ++st) {
    if (s.stored[st] && s.strips.home[st] == number) bytes += r.storages[st].bytes;
  }
  std::string text = fmt::format(
      "  the next {} kernels run in {} parts, one after the other; {} of temporaries never exist "
      "as "
      "a whole\n",
      strip->last - strip->first + 1, strip->parts, bytes_text(bytes));
  int64_t kept = 0;
  for (uint32_t g = strip->first; g <= strip->last && !s.strips.kept.empty(); ++g) {
    kept += s.strips.kept[g];
  }
  if (kept > 0)
    text += fmt::format("  {} of weights are packed once for all parts\n", bytes_text(kept));
  return text;
}

// "net.0: add relu sum".
static std::string title_of(const Recording& r, const Group& g) {
  const std::string& path = r.paths[r.instrs[g.instrs[0]].path];
  return (path.empty() ? "" : shown(path, SIZE_MAX) + ": ") + group_name(r, g);
}

static std::string kernels_of(const Plan& plan, bool fused) {
  const Recording& r = plan.recording();
  const Schedule& s = plan.schedule();
  std::string t;
  double fused_bytes = 0, unfused_bytes = 0;
  for (uint32_t k = 0; k < s.groups.size(); ++k) {
    const Group& g = s.groups[k];
    t += strip_text(r, s, k);
    const Instr& first = r.instrs[g.instrs[0]];
    t += fmt::format("  {:9} {}", g.fused ? "generated" : name(first.op->kind), title_of(r, g));
    if (g.fused) {
      const double moved = group_bytes(r, s, g), alone = group_bytes_unfused(r, g);
      fused_bytes += moved;
      unfused_bytes += alone;
      if (moved != alone) {
        t += fmt::format(", {} moved instead of {}", bytes_text(moved), bytes_text(alone));
      }
    }
    if (plan.is_on_side_branch(k)) t += ", on the side branch";
    const std::string why = fused ? why_not_fused(r, s, plan.target(), k) : "";
    t += why.empty() ? "\n" : fmt::format("\n            {}\n", why);
  }
  if (fused_bytes < unfused_bytes) {
    t += fmt::format("the fused kernels move {} a replay, their ops one by one would move {}\n",
                     bytes_text(fused_bytes), bytes_text(unfused_bytes));
  }
  return t;
}

// A copy: a replay takes this mutex while it holds its entry's, so no entry's is taken under it.
std::vector<std::shared_ptr<Entry>> StepCore::all_entries() {
  const std::lock_guard lock(mutex_);
  return entries_;
}

std::string StepCore::explain() {
  const StepStats s = stats();
  const auto entries = all_entries();
  if (options_.mode == Mode::Eager) {
    return fmt::format("step: {} calls, eager: nothing is recorded\n", s.calls);
  }
  std::string t = fmt::format(
      "step: {} calls, {} recordings, {} replays, {} fallbacks, {} entries (most {}), {} evicted\n",
      s.calls, s.recordings, s.replays, s.fallbacks, entries.size(), options_.max_entries,
      s.evictions);
  std::string cached;
  const double cached_seconds = [&] {
    const std::lock_guard lock(mutex_);
    return cached_seconds_;
  }();
  if (s.build_seconds > 0 && cached_seconds == s.build_seconds) {
    cached = " (from the disk cache)";
  } else if (cached_seconds > 0) {
    cached = fmt::format(" ({:.1f} of them from the disk cache)", cached_seconds * 1e3);
  }
  t += fmt::format("once: record {:.2f} ms, fuse {:.2f} ms, plan {:.2f} ms, build {:.1f} ms{}\n",
                   s.record_seconds * 1e3, s.fuse_seconds * 1e3, s.plan_seconds * 1e3,
                   s.build_seconds * 1e3, cached);
  if (s.verified) t += fmt::format("verified against eager: {} replays, all equal\n", s.verified);
  for (size_t k = 0; k < entries.size(); ++k) {
    Entry& e = *entries[k];
    const std::lock_guard lock(e.mutex);
    t += fmt::format("entry {}: {} ops, {} calls, {} replays", k, e.recording.instrs.size(),
                     e.calls, e.replays);
    if (!e.failure.empty()) t += ", no plan: " + e.failure.substr(0, e.failure.find('\n'));
    if (e.plan) {
      const MemoryPlan& m = e.plan->memory();
      t += fmt::format(", {} kernels ({} generated), {} ops without effect removed\n",
                       e.plan->kernels(), e.plan->generated_kernels(), e.plan->schedule().removed);
      t += fmt::format("  arena {} (lower bound {}{}), in place {} of {}",
                       bytes_text(m.arena_bytes), bytes_text(m.lower_bound_bytes),
                       m.hosted ? fmt::format(", {} temporaries placed in results", m.hosted) : "",
                       m.in_place, m.in_place_candidates);
      t += rematerialised_text(*e.plan, options_) + pitched_text(e.plan->recording());
    }
    if (e.plan && e.plan->counts().captures + e.plan->counts().direct > 0) {
      const ReplayCounts& c = e.plan->counts();
      t += fmt::format(
          "\n  captured {} times in {:.1f} ms: {} nodes, {} groups on the side branch, {}; inputs "
          "copied {}, results moved {}, {} uploaded a replay",
          c.captures, c.capture_seconds * 1e3, c.nodes, c.beside, bytes_text(c.graph_bytes),
          c.copied_in, c.copied_out, bytes_text(c.upload_bytes));
      if (c.direct) t += fmt::format("; {} replays without a capture: {}", c.direct, c.failure);
    }
    if (options_.mode == Mode::Auto && e.trials > 0) {
      t += fmt::format("\n  auto: replay {:.1f} us, eager {:.1f} us, keeps {}",
                       e.replay_seconds * 1e6, e.walk_seconds * 1e6,
                       e.prefers_eager() ? "eager" : "replay");
    }
    t += "\n";
  }
  if (!entries.empty()) {
    const std::lock_guard lock(entries[0]->mutex);
    if (entries[0]->plan)
      t += "kernels of entry 0:\n" + kernels_of(*entries[0]->plan, options_.fuse);
  }
  const std::lock_guard lock(mutex_);
  for (const std::string& line : log_) t += line + "\n";
  if (is_frozen_) t += "frozen: the function no longer runs\n";
  return t;
}

// A name, escaped for a DOT label.
static std::string label_of(const std::string& name) {
  std::string t;
  for (char c : shown(name)) {
    if (c == '"' || c == '\\') t += '\\';
    t += c;
  }
  return t;
}

std::shared_ptr<Entry> StepCore::last_entry(const char* what) {
  BRRR_CHECK(options_.mode != Mode::Eager, "{}: an eager step has no graph", what);
  const auto entries = all_entries();
  BRRR_CHECK(!entries.empty(), "{}: call the step at least once before", what);
  return entries[0];
}

std::string StepCore::source() {
  const auto entry = last_entry("step.source");
  const std::lock_guard lock(entry->mutex);
  const Plan* const plan = entry->plan.get();
  BRRR_CHECK(plan, "step.source: nothing is built{}",
             entry->failure.empty() ? ", which an entry's second call does; call the step again"
                                    : ": " + entry->failure);
  const KernelSource& source = plan->source();
  std::string t = source.shared;
  for (size_t k = 0; k < source.kernels.size(); ++k) {
    const std::string title = title_of(plan->recording(), plan->first_user(k));
    t += fmt::format("\n// {}:\n{}", shown(title, std::string::npos), source.kernels[k]);
  }
  return t;
}

std::string StepCore::dot() {
  const auto entry = last_entry("step.dot");
  Entry& e = *entry;
  const std::lock_guard lock(e.mutex);
  const Recording& r = e.plan ? e.plan->recording() : e.recording;
  std::string t = "digraph step {\n  rankdir=TB; node [shape=box, fontname=\"monospace\"];\n";
  for (size_t k = 0; k < r.externals.size(); ++k) {
    t += fmt::format("  s{} [label=\"input {}\", shape=ellipse];\n", r.externals[k], k);
  }
  auto node = [&](size_t at) {
    const Instr& i = r.instrs[at];
    const Value& v = r.value(r.out(i)[0]);
    return fmt::format("    i{} [label=\"{}{}\\n{}{}\"];\n", at, label_of(i.op->name),
                       i.into ? "_" : "", name(v.dtype), to_string(v.size_list()));
  };
  const std::vector<Group> groups =
      e.plan ? e.plan->schedule().groups : make_schedule(r, false).groups;
  for (size_t g = 0; g < groups.size(); ++g) {
    if (groups[g].fused)
      t += fmt::format("  subgraph cluster_{} {{ style=filled; color=lightgrey;\n", g);
    for (uint32_t at : groups[g].instrs) t += node(at);
    if (groups[g].fused) t += "  }\n";
  }
  std::vector<std::string> maker(r.storages.size());
  for (uint32_t s : r.externals) maker[s] = fmt::format("s{}", s);
  for (size_t at = 0; at < r.instrs.size(); ++at) {
    if (!r.live[at]) continue;
    r.each_operand(r.instrs[at], [&](uint32_t value, bool write) {
      std::string& by = maker[r.value(value).storage];
      if (write)
        by = fmt::format("i{}", at);
      else
        t += fmt::format("  {} -> i{};\n", by, at);
    });
  }
  for (uint32_t s : r.survivors) {
    t += fmt::format("  {} -> out{}; out{} [label=\"output\", shape=ellipse];\n", maker[s], s, s);
  }
  return t + "}\n";
}

}  // namespace brrr::graph
