// The recording half of a pass.
#include <algorithm>
#include <atomic>
#include <bit>

#include "core/check.h"
#include "core/text.h"
#include "graph/pass.h"

namespace brrr::graph {

namespace {

/// Bytes that the host made inside the step, as an instruction; the sizes follow. Their address is
/// dynamic, staged on every call, so they are never a constant.
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

// A replay is of one device, so what the CPU would have to compute in it is refused: the walker
// could run such a step, but never faster than eager mode does, and nobody would notice.
Tensor Pass::host_values(const TensorImpl& t) {
  Storage* s = t.storage;
  bool computed = false;
  if (s->pass == this) {
    const auto it = std::ranges::find(host_bytes_, s->slot, [](auto& b) { return b.second; });
    computed = it == host_bytes_.end() || s->version > 0;
    if (!computed) s = it->first.impl()->storage;
  } else {
    if (s->pass || s->lost) check_host_access("to(device)", &t);  // Says whose it is.
    computed = std::ranges::any_of(changes_, [&](const Change& c) { return c.storage.get() == s; });
  }
  BRRR_CHECK(!computed,
             "to(device): {} is computed on the CPU inside a graph-mode step, and a replay is of "
             "one device; compute it on the device (zeros, arange and the like take one; move host "
             "data there first), or before the step",
             brrr::describe(&t));
  return tensor_on(*s, t.dtype, t.size_list(), t.stride_list(), t.offset);
}

// Copies what has been verified of the expected recording; the pass goes on recording after it.
void Pass::begin_recording() {
  fresh_ = *expected_;
  fresh_.instrs.resize(cursor());
  fresh_.prefixes.resize(cursor());
  fresh_.control.resize(control_.size());
  fresh_.externals.resize(bindings_.size());
  fresh_.survivors.clear();
  fresh_.gradients.clear();
  // Operands, values and storages are numbered by first use.
  uint32_t operands = 0, values = 0, storages = 0;
  for (const Instr& i : fresh_.instrs) operands = i.first_out + i.n_out;
  fresh_.operands.resize(operands);
  for (uint32_t id : fresh_.operands) {
    if (id != kNone) values = std::max(values, id + 1);
  }
  fresh_.values.resize(values);
  for (const Value& v : fresh_.values) storages = std::max(storages, v.storage + 1);
  fresh_.storages.resize(storages);
  windows_.assign(storages, {});
  for (uint32_t id = 0; id < values; ++id) windows_[fresh_.values[id].storage].push_back(id);
  left_ = expected_;
  resized_ = false;
  expect(nullptr);
}

// The attribute words of a call that are numbers which a replay can read anew.
static uint16_t numbers_of(const OpCall& c) {
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

// The words of a call's numbers that have varied in the recording that the pass has left, or do now
// and nothing else of the call: the next call may have others again, and so may those that come
// after it.
uint16_t Pass::varying_words(const OpCall& c, const std::vector<uint32_t>& ids) {
  const size_t at = fresh_.instrs.size();
  const Instr* const e = left_ && at < left_->instrs.size() ? &left_->instrs[at] : nullptr;
  const bool goes_on =
      e && e->op == c.op && e->into == c.into && e->n_in == c.n_in && e->n_out == c.n_out;
  if (!goes_on) left_ = nullptr;
  if (!goes_on) return 0;
  bool same = true;
  for (size_t k = 0; k < ids.size() && same; ++k) {
    const TensorImpl* const t = operand(c, static_cast<int>(k));
    const bool same_id = ids[k] == left_->operands[e->first_in + k];
    same = same_id && (!t || left_->values[ids[k]].is_like(*t));
    if (same_id && t) resized_ |= left_->values[ids[k]].size_list() != t->size_list();
  }
  const uint16_t numbers = e->attrs.kinds == c.attrs.kinds ? numbers_of(c) : 0;
  if (!numbers) return 0;
  uint16_t words = e->attrs.dynamic;
  // Where there are other sizes a number may come from one: 1 / n in the gradient of a mean.
  if (!same || resized_) return words;
  for (unsigned bits = numbers; bits; bits &= bits - 1) {
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
  const auto id = static_cast<uint32_t>(fresh_.values.size());
  fresh_.values.push_back(v);
  windows_.resize(fresh_.storages.size());
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
    fresh_.externals.push_back(static_cast<uint32_t>(fresh_.storages.size()));
    fresh_.storages.push_back({Origin::External, t->device, t->storage->bytes, number});
  }
  const uint32_t storage = fresh_.externals[number];
  const int64_t offset = t->offset - bindings_[number].base;
  windows_.resize(fresh_.storages.size());
  for (uint32_t id : windows_[storage]) {
    const Value& v = fresh_.values[id];
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
  i.path = path_id(fresh_.paths);
  i.attrs = c.attrs;
  const auto index = static_cast<uint32_t>(fresh_.instrs.size());
  std::vector<uint32_t> ids;
  for (int k = 0; k < c.n_in; ++k) ids.push_back(operand_id(c.in[k]));
  for (int k = 0; c.into && k < c.n_out; ++k) ids.push_back(operand_id(c.out[k].impl()));
  i.attrs.dynamic |= varying_words(c, ids);
  for (int k = 0; !c.into && k < c.n_out; ++k) {
    const OutMeta& m = c.meta[k];
    uint32_t storage;
    int64_t offset = 0;
    if (m.alias >= 0) {
      storage = fresh_.values[ids[static_cast<size_t>(m.alias)]].storage;
      const StorageInfo& info = fresh_.storages[storage];
      offset = m.offset - (info.origin == Origin::External ? bindings_[info.maker].base : 0);
    } else {
      storage = static_cast<uint32_t>(fresh_.storages.size());
      const size_t bytes = static_cast<size_t>(numel_of(m.sizes)) * itemsize(m.dtype);
      fresh_.storages.push_back({Origin::Internal, m.device, bytes, index});
    }
    ids.push_back(add_value(
        m.dtype, m.sizes, m.alias >= 0 ? m.strides : contiguous_strides(m.sizes), offset, storage));
  }
  fresh_.put_operands(i, static_cast<size_t>(c.n_in), ids);
  i.control = static_cast<uint32_t>(control_.size());
  note_control(i, c);
  for (size_t k = i.control; k < control_.size(); ++k) {
    const ControlCell* const cell = effects_.cells[k].get();
    const bool draw = cell && cell->kind == ControlCell::RngDraw;
    fresh_.control.push_back(draw ? control_[k] - static_cast<int64_t>(rng_before_.draw) : 0);
  }
  make_placeholders(fresh_, i, index, c);
  fresh_.instrs.push_back(i);
  static std::atomic<uint64_t> prefixes{0};
  fresh_.prefixes.push_back(++prefixes);
}

// --- words for people ----------------------------------------------------------------------------

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

// What a word was, and what it is in the call. Numbers say what they are; of other words those are
// the bits of a double that would be huge as integers.
static std::string describe_word(const Attrs& was, const OpCall& c, int word) {
  const auto is_huge = [&](int64_t v) { return v >> 52 != 0 && v >> 52 != -1; };
  bool real = is_huge(was.v[word]) || is_huge(c.attrs.v[word]);
  std::string what = fmt::format("attribute {}", word);
  int numbers = 0;
  for (int i = 0; i < c.n_in && c.op->kind == OpKind::Pointwise; ++i) {
    if (!c.attrs.kind(i) || numbers++ != word) continue;
    what = "scalar";
    real = c.attrs.kind(i) == 3;
  }
  // Where all operands are numbers the sizes follow them.
  if (numbers == c.n_in && word >= numbers && numbers > 0) {
    what = fmt::format("size {}", word - numbers);
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
             : "results differs: other tensors outlive the step than when it was recorded";
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
      return fmt::format("op differs: {}: {} results were wanted, now {}", where, e.n_out,
                         c->n_out);
    case Mismatch::Word:
      return fmt::format("attribute {} differs: {}: {}", m.at, where,
                         describe_word(e.attrs, *c, m.at));
    case Mismatch::Operand:
    case Mismatch::OfItsShape: {
      const std::string role = m.at < c->n_in ? fmt::format("operand {}", m.at)
                                              : fmt::format("destination {}", m.at - c->n_in);
      return fmt::format("{} differs: {}, {}: {}", role, where, role,
                         describe_operand(*expected_, expected_->all(e)[m.at], operand(*c, m.at)));
    }
    default:
      return fmt::format("attributes differs: {}: other attributes", where);
  }
}

// Keeps it, if this candidate is closer than those before it.
void Pass::note_difference(const OpCall* c) {
  const size_t at = cursor();
  const Instr* const e = c && at < expected_->instrs.size() ? &expected_->instrs[at] : nullptr;
  const Mismatch m = e ? mismatch(*e, *c) : Mismatch{};
  const int closeness = std::max(m.kind, Mismatch::Attributes);
  const bool closer = difference_.text.empty() ||
                      std::pair(at, closeness) > std::pair(difference_.at, difference_.closeness);
  if (closer) difference_ = {at, closeness, describe_difference(c, m)};
}

}  // namespace brrr::graph
