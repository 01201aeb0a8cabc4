// The recording half of a pass.
#include <algorithm>
#include <atomic>
#include <bit>

#include "core/check.h"
#include "core/text.h"
#include "graph/pass.h"

namespace brrr::graph {

namespace {

/// Attributes of the instruction that copies in bytes which the host made inside the step; sizes
/// follow. The address is a dynamic word, set on every call, so the bytes are never a constant.
struct HostDataAttrs {
  const void* from;
};

void host_data_infer(OpCall& c) {
  OutMeta& m = c.meta[0];
  m.dtype = static_cast<DType>(c.attrs.dtype);
  m.device.type = static_cast<DeviceType>(c.attrs.device);
  m.sizes = c.attrs.after<HostDataAttrs>();
}

void host_data_run(OpCall& c) {
  const TensorImpl& t = *c.out[0].impl();
  const size_t bytes = static_cast<size_t>(t.numel) * itemsize(t.dtype);
  const void* from = c.attrs.as<HostDataAttrs>().from;
  if (bytes) backend(t.device.type).copy_from_host(t.data(), from, bytes);
}

const OpDef host_data_row{"host_data",
                          "a tensor made from host memory inside a step",
                          {.infer = host_data_infer, .kernel = {{host_data_run}, {host_data_run}}}};

}  // namespace

bool is_host_data(const Instr& i) { return i.op == &host_data_row; }

Tensor Pass::host_data(const void* data, const Meta& meta) {
  const size_t bytes = static_cast<size_t>(numel_of(meta.sizes)) * itemsize(meta.dtype);
  Tensor copy = raw_empty({static_cast<int64_t>(bytes)}, kUInt8, kCPU);
  if (bytes) std::memcpy(copy.impl()->data(), data, bytes);
  OpCall c(host_data_row, nullptr, 0);
  c.attrs.dynamic = 1;
  c.cells[0] = nullptr;
  c.attrs.push(HostDataAttrs{copy.impl()->data()});
  c.attrs.push(meta.sizes);
  c.attrs.set_dtype(meta.dtype);
  c.attrs.device = static_cast<uint8_t>(meta.device.type);
  host_bytes_.emplace_back(std::move(copy), kNone);
  op(c);
  host_bytes_.back().second = c.out[0].impl()->storage->slot;
  return std::move(c.out[0]);
}

// A replay runs on one device, so a tensor computed on the CPU inside the step is refused: the
// walker could run such a step, but never faster than eager mode, which is easily overlooked.
Tensor Pass::host_values(const TensorImpl& t) {
  Storage* s = t.storage;
  bool computed = false;
  if (s->pass == this) {
    const auto it = std::ranges::find(host_bytes_, s->slot, [](auto& b) { return b.second; });
    computed = it == host_bytes_.end() || s->version > 0;
    if (!computed) s = it->first.impl()->storage;
  } else {
    if (s->pass || s->lost) check_host_access("to(device)", &t);  // Throws, naming the tensor.
    computed = std::ranges::any_of(changes_, [&](const Change& c) { return c.storage.get() == s; });
  }
  BRRR_CHECK(!computed,
             "to(device): {} is computed on the CPU inside a graph-mode step, and a replay is of "
             "one device; compute it on the device (zeros, arange and the like take one; move host "
             "data there first), or before the step",
             brrr::describe(&t));
  return tensor_on(*s, t.dtype, t.size_list(), t.stride_list(), t.offset);
}

// Copies the matched prefix of the expected recording; the pass goes on recording after it.
void Pass::begin_recording() {
  recording_ = *expected_;
  recording_.instrs.resize(cursor());
  recording_.prefixes.resize(cursor());
  recording_.control.resize(control_.size());
  recording_.externals.resize(bindings_.size());
  recording_.survivors.clear();
  recording_.gradients.clear();
  // Operands, values and storages are numbered by first use.
  uint32_t operands = 0, values = 0, storages = 0;
  for (const Instr& i : recording_.instrs) operands = i.first_out + i.n_out;
  recording_.operands.resize(operands);
  for (uint32_t id : recording_.operands) {
    if (id != kNone) values = std::max(values, id + 1);
  }
  recording_.values.resize(values);
  for (const Value& v : recording_.values) storages = std::max(storages, v.storage + 1);
  recording_.storages.resize(storages);
  windows_.assign(storages, {});
  for (uint32_t id = 0; id < values; ++id) windows_[recording_.values[id].storage].push_back(id);
  parent_ = expected_;
  resized_ = false;
  expect(nullptr);
}

// A bit mask of the attribute words that are scalars which a replay can read from control words.
static uint16_t scalar_words(const OpCall& c) {
  if (c.op->kind != OpKind::Pointwise) {
    const auto given = std::find_if(c.in, c.in + c.n_in, [](TensorImpl* t) { return t; });
    const bool on_cpu = given != c.in + c.n_in && (*given)->device == kCPU;
    return on_cpu ? c.op->numbers : uint16_t{0};
  }
  uint16_t words = 0;
  for (int i = 0, w = 0; i < c.n_in; ++i) {
    const int kind = c.attrs.kind(i);
    if (kind >= 2) words |= static_cast<uint16_t>(1u << w);
    w += kind != 0;
  }
  return words;
}

// A bit mask of the scalar words that vary: those that are dynamic in the recording that the pass
// has left, and those that are the only difference of this call from it. They become dynamic, since
// later calls may have other values again.
uint16_t Pass::varying_words(const OpCall& c, const std::vector<uint32_t>& ids) {
  const size_t at = recording_.instrs.size();
  const Instr* const e = parent_ && at < parent_->instrs.size() ? &parent_->instrs[at] : nullptr;
  const bool goes_on =
      e && e->op == c.op && e->into == c.into && e->n_in == c.n_in && e->n_out == c.n_out;
  if (!goes_on) parent_ = nullptr;
  if (!goes_on) return 0;
  bool same = true;
  for (size_t k = 0; k < ids.size() && same; ++k) {
    const TensorImpl* const t = operand(c, static_cast<int>(k));
    const bool same_id = ids[k] == parent_->operands[e->first_in + k];
    same = same_id && (!t || parent_->values[ids[k]].is_like(*t));
    if (same_id && t) resized_ |= parent_->values[ids[k]].size_list() != t->size_list();
  }
  const uint16_t scalars = e->attrs.kinds == c.attrs.kinds ? scalar_words(c) : 0;
  if (!scalars) return 0;
  uint16_t words = e->attrs.dynamic;
  // If sizes differ, a scalar may derive from a size: 1 / n in the gradient of a mean.
  if (!same || resized_) return words;
  for (unsigned bits = scalars; bits; bits &= bits - 1) {
    const int w = std::countr_zero(bits);
    if (e->attrs.v[w] != c.attrs.v[w]) words |= static_cast<uint16_t>(1u << w);
  }
  return words;
}

uint32_t Pass::add_value(DType dtype, const IntList& sizes, const IntList& strides, int64_t offset,
                         uint32_t storage) {
  Value v{};
  v.storage = storage;
  v.dtype = dtype;
  v.ndim = static_cast<uint8_t>(sizes.size());
  std::copy(sizes.begin(), sizes.end(), v.sizes);
  std::copy(strides.begin(), strides.end(), v.strides);
  v.strided = !is_contiguous(v.sizes, v.strides, v.ndim);
  v.offset = offset;
  v.numel = numel_of(sizes);
  const auto id = static_cast<uint32_t>(recording_.values.size());
  recording_.values.push_back(v);
  windows_.resize(recording_.storages.size());
  windows_[storage].push_back(id);
  return id;
}

uint32_t Pass::operand_id(const TensorImpl* t) {
  if (!t) return kNone;
  if (t->storage->pass == this) return t->value;
  uint32_t number = external_of(*t->storage);
  if (number == kNone) {
    number = static_cast<uint32_t>(bindings_.size());
    bind(*t, 0);
    recording_.externals.push_back(static_cast<uint32_t>(recording_.storages.size()));
    recording_.storages.push_back({Origin::External, t->device, t->storage->bytes, number});
  }
  const uint32_t storage = recording_.externals[number];
  const int64_t offset = t->offset - bindings_[number].base;
  windows_.resize(recording_.storages.size());
  for (uint32_t id : windows_[storage]) {
    const Value& v = recording_.values[id];
    if (v.offset == offset && v.is_like(*t)) return id;
  }
  return add_value(t->dtype, t->size_list(), t->stride_list(), offset, storage);
}

static uint32_t path_id(std::vector<std::string>& paths) {
  const std::string path = module_path();
  const auto id = static_cast<uint32_t>(std::ranges::find(paths, path) - paths.begin());
  if (id == paths.size()) paths.push_back(path);
  return id;
}

void Pass::record(OpCall& c) {
  check_readable(c);
  c.infer();
  Instr i{};
  i.op = c.op;
  i.n_out = c.n_out;
  i.into = c.into;
  i.path = path_id(recording_.paths);
  i.attrs = c.attrs;
  const auto index = static_cast<uint32_t>(recording_.instrs.size());
  std::vector<uint32_t> ids;
  for (int k = 0; k < c.n_in; ++k) ids.push_back(operand_id(c.in[k]));
  for (int k = 0; c.into && k < c.n_out; ++k) ids.push_back(operand_id(c.out[k].impl()));
  i.attrs.dynamic |= varying_words(c, ids);
  for (int k = 0; !c.into && k < c.n_out; ++k) {
    const OutMeta& m = c.meta[k];
    uint32_t storage;
    int64_t offset = 0;
    if (m.alias >= 0) {
      storage = recording_.values[ids[static_cast<size_t>(m.alias)]].storage;
      const StorageInfo& info = recording_.storages[storage];
      offset = m.offset - (info.origin == Origin::External ? bindings_[info.maker].base : 0);
    } else {
      storage = static_cast<uint32_t>(recording_.storages.size());
      const size_t bytes = static_cast<size_t>(numel_of(m.sizes)) * itemsize(m.dtype);
      recording_.storages.push_back({Origin::Internal, m.device, bytes, index});
    }
    ids.push_back(add_value(
        m.dtype, m.sizes, m.alias >= 0 ? m.strides : contiguous_strides(m.sizes), offset, storage));
  }
  recording_.put_operands(i, static_cast<size_t>(c.n_in), ids);
  i.control = static_cast<uint32_t>(control_.size());
  record_control(i, c);
  for (size_t k = i.control; k < control_.size(); ++k) {
    const ControlCell* const cell = effects_.cells[k].get();
    const bool draw = cell && cell->kind == ControlCell::RngDraw;
    recording_.control.push_back(draw ? control_[k] - static_cast<int64_t>(rng_before_.draw) : 0);
  }
  make_placeholders(recording_, i, index, c);
  recording_.instrs.push_back(i);
  static std::atomic<uint64_t> prefixes{0};
  recording_.prefixes.push_back(++prefixes);
}

// --- messages ------------------------------------------------------------------------------------

static std::string describe_operand(const Recording& r, uint32_t id, const TensorImpl* t) {
  const std::string found = t ? brrr::describe(t) : "a scalar";
  if (id == kNone) return "expected a scalar, found " + found;
  const Value& v = r.values[id];
  std::string expected = fmt::format("{}{}", name(v.dtype), to_string(v.size_list()));
  const Device device = r.storages[v.storage].device;
  if (t && device != t->device) {
    return fmt::format("expected {} on {}, found {} on {}", expected, name(device), found,
                       name(t->device));
  }
  if (t && expected == found) {
    const IntList was = v.stride_list(), now = t->stride_list();
    if (was == now) return fmt::format("expected {}, found another tensor of that shape", expected);
    return fmt::format("expected {} with strides {}, found strides {}", expected, to_string(was),
                       to_string(now));
  }
  return "expected " + expected + ", found " + found;
}

// The recorded and the called value of an attribute word. Scalars have a kind that says whether
// they are floating; other words that would be huge as integers are taken for the bits of a double.
static std::string describe_word(const Attrs& was, const OpCall& c, int word) {
  const auto is_huge = [&](int64_t v) { return v >> 52 != 0 && v >> 52 != -1; };
  bool real = is_huge(was.v[word]) || is_huge(c.attrs.v[word]);
  std::string what = fmt::format("attribute {}", word);
  int scalars = 0;
  for (int i = 0; i < c.n_in && c.op->kind == OpKind::Pointwise; ++i) {
    if (!c.attrs.kind(i) || scalars++ != word) continue;
    what = "scalar";
    real = c.attrs.kind(i) == 3;
  }
  // If all operands are scalars, the sizes follow them.
  if (scalars == c.n_in && word >= scalars && scalars > 0) {
    what = fmt::format("size {}", word - scalars);
  }
  const auto text = [&](const Attrs& a) {
    return real ? fmt::format("{}", a.d(word)) : fmt::format("{}", a.v[word]);
  };
  return fmt::format("{} was {}, now {}", what, text(was), text(c.attrs));
}

std::string Pass::describe_difference(const OpCall* c, const Mismatch& m) const {
  const size_t at = cursor();
  if (at >= expected_->instrs.size()) {
    return c ? fmt::format(
                   "length differs: the recording ends after {} ops, this call goes on with {}", at,
                   c->op->name)
             : "results differ: other tensors outlive the step than when it was recorded";
  }
  const Instr& e = expected_->instrs[at];
  const std::string path = shown(expected_->paths[e.path], SIZE_MAX);
  const std::string where =
      fmt::format("op {} ({}{}{})", at, path, path.empty() ? "" : ": ", e.op->name);
  if (!c) return fmt::format("length differs: {}: this call ended before it", where);
  switch (m.kind) {
    case Mismatch::Op:
      return fmt::format("op differs: {}: found {}{} instead", where, c->op->name,
                         c->into ? "_" : "");
    case Mismatch::Results:
      return fmt::format("op differs: {}: expected {} results, found {}", where, e.n_out, c->n_out);
    case Mismatch::Word:
      return fmt::format("attribute {} differs: {}: {}", m.at, where,
                         describe_word(e.attrs, *c, m.at));
    case Mismatch::Operand:
    case Mismatch::SameShape: {
      const std::string role = m.at < c->n_in ? fmt::format("operand {}", m.at)
                                              : fmt::format("destination {}", m.at - c->n_in);
      return fmt::format("{} differs: {}, {}: {}", role, where, role,
                         describe_operand(*expected_, expected_->all(e)[m.at], operand(*c, m.at)));
    }
    default:
      return fmt::format("attributes differ: {}", where);
  }
}

// Keeps the difference if this candidate is closer than those before it.
void Pass::keep_closest_difference(const OpCall* c) {
  const size_t at = cursor();
  const Instr* const e = c && at < expected_->instrs.size() ? &expected_->instrs[at] : nullptr;
  const Mismatch m = e ? mismatch(*e, *c) : Mismatch{};
  const int closeness = std::max(m.kind, Mismatch::Attributes);
  const bool closer = difference_.text.empty() ||
                      std::pair(at, closeness) > std::pair(difference_.at, difference_.closeness);
  if (closer) difference_ = {at, closeness, describe_difference(c, m)};
}

}  // namespace brrr::graph
