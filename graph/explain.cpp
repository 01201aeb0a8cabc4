// What a step did, for people: the summary and the DOT picture.
#include "core/check.h"
#include "core/text.h"
#include "graph/core.h"
#include "graph/cost.h"

namespace brrr::graph {

static std::string anew_text(const Plan& plan, const StepOptions& options) {
  const Rematerialised& anew = plan.rematerialised();
  std::string t;
  if (anew.instrs) {
    t = fmt::format("\n  {} ops make anew what could be kept", anew.instrs);
    if (anew.bytes > 0) t += fmt::format("; it saves moving {}", bytes_text(anew.bytes));
  }
  if (options.memory_budget > 0) {
    const size_t budget = budget_bytes(options, anew.arena_before);
    t += fmt::format(
        "\n  memory budget {}: temporaries take {} at most, {} before, kernels' own memory aside{}",
        bytes_text(budget), bytes_text(anew.arena), bytes_text(anew.arena_before),
        anew.arena > budget ? "; nothing more can be dropped" : "");
  } else if (anew.arena < anew.arena_before) {
    t += fmt::format("; temporaries take {} instead of {}", bytes_text(anew.arena),
                     bytes_text(anew.arena_before));
  }
  if (anew.ahead) {
    t += fmt::format("\n  {} derivatives are computed with their functions, whose operands go",
                     anew.ahead);
  }
  return t;
}

static std::string rows_text(const Recording& r) {
  size_t n = 0, bytes = 0;
  for (const StorageInfo& st : r.storages) {
    n += st.row != 0;
    bytes += st.row != 0 ? st.bytes : 0;
  }
  if (n == 0) return "";
  return fmt::format("\n  {} temporaries, {}, lie where the library takes them without a copy", n,
                     bytes_text(bytes));
}

// Before the first kernel of a strip.
static std::string strip_text(const Recording& r, const Schedule& s, uint32_t group) {
  const Strip* const strip = s.strips.of(group);
  if (!strip || strip->first != group) return "";
  const auto number = static_cast<uint32_t>(strip - s.strips.all.data());
  size_t bytes = 0;
  for (uint32_t st = 0; st < r.storages.size(); ++st) {
    if (s.stored[st] && s.strips.home[st] == number) bytes += r.storages[st].bytes;
  }
  std::string text = fmt::format(
      "  the next {} kernels run in {} parts, one after the other; {} of values are never whole\n",
      strip->last - strip->first + 1, strip->parts, bytes_text(bytes));
  int64_t kept = 0;
  for (uint32_t g = strip->first; g <= strip->last && !s.strips.kept.empty(); ++g) {
    kept += s.strips.kept[g];
  }
  if (kept > 0) text += fmt::format("  {} of weights are copied once for all\n", bytes_text(kept));
  return text;
}

// "net.0: add relu sum".
static std::string title_of(const Recording& r, const Group& g) {
  const std::string& path = r.paths[r.instrs[g.instrs[0]].path];
  return (path.empty() ? "" : shown(path, SIZE_MAX) + ": ") + group_name(r, g);
}

static std::string kernels_of(const Plan& plan) {
  const Recording& r = plan.recording();
  const Schedule& s = plan.schedule();
  std::string t;
  double together = 0, apart = 0;
  for (uint32_t k = 0; k < s.groups.size(); ++k) {
    const Group& g = s.groups[k];
    t += strip_text(r, s, k);
    const Instr& first = r.instrs[g.instrs[0]];
    t += fmt::format("  {:9} {}", g.fused ? "generated" : name(first.op->kind), title_of(r, g));
    if (g.fused) {
      const double moved = group_bytes(r, s, g), alone = bytes_apart(r, g);
      together += moved;
      apart += alone;
      if (moved != alone) {
        t += fmt::format(", {} moved instead of {}", bytes_text(moved), bytes_text(alone));
      }
    }
    if (plan.is_beside(k)) t += ", beside those that follow";
    const std::string why = why_apart(r, s, plan.target(), k);
    t += why.empty() ? "\n" : fmt::format("\n            {}\n", why);
  }
  if (together < apart) {
    t += fmt::format("fusion moves {} a replay where its ops one by one would move {}\n",
                     bytes_text(together), bytes_text(apart));
  }
  return t;
}

// Whoever replays one has its lock and then takes that of all.
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
                       m.hosted ? fmt::format(", {} temporaries live in results", m.hosted) : "",
                       m.in_place, m.in_place_candidates);
      t += anew_text(*e.plan, options_) + rows_text(e.plan->recording());
    }
    if (e.plan && e.plan->counts().captures + e.plan->counts().direct > 0) {
      const ReplayCounts& c = e.plan->counts();
      t += fmt::format(
          "\n  captured {} times in {:.1f} ms: {} nodes, {} groups beside others, {}; inputs "
          "copied {}, results moved away {}, {} from the host in one copy a replay",
          c.captures, c.capture_seconds * 1e3, c.nodes, c.beside, bytes_text(c.graph_bytes),
          c.copied_in, c.moved_away, bytes_text(c.upload_bytes));
      if (c.direct) t += fmt::format("; {} replays without a capture: {}", c.direct, c.failure);
    }
    if (options_.mode == Mode::Auto && e.trials > 0) {
      t += fmt::format("\n  auto: replay {:.1f} us, eager {:.1f} us, keeps {}",
                       e.replay_seconds * 1e6, e.walk_seconds * 1e6,
                       e.prefers_walk() ? "eager" : "replay");
    }
    t += "\n";
  }
  if (!entries.empty()) {
    const std::lock_guard lock(entries[0]->mutex);
    if (entries[0]->plan) t += "kernels of entry 0:\n" + kernels_of(*entries[0]->plan);
  }
  const std::lock_guard lock(mutex_);
  for (const std::string& line : log_) t += line + "\n";
  if (is_frozen_) t += "frozen: the function is not run any more\n";
  return t;
}

// A name as part of a label of DOT.
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
