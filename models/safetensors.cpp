#include "models/safetensors.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <set>

#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "core/check.h"
#include "core/context.h"
#include "models/file.h"

namespace brrr {

static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian");

namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr uint64_t kMaxHeader = 100'000'000;  // The reference implementation's limit.
constexpr const char* kMetadataKey = "__metadata__";
constexpr const char* kNames[kNumDTypes] = {"F32", "F64", "BF16", "F16",
                                            "I64", "I32", "U8",   "BOOL"};

// --- writing -------------------------------------------------------------------------------------

struct Item {
  const std::string* name;
  Tensor host;
  size_t bytes() const { return static_cast<size_t>(host.numel()) * itemsize(host.dtype()); }
};

std::vector<Item> on_host(const std::string& path, const StateDict& dict) {
  NoGradGuard guard;
  std::vector<Item> items;
  for (const auto& [name, t] : dict) {
    BRRR_CHECK(t.defined(), "save: {}: tensor \"{}\" is undefined", path, shown(name));
    BRRR_CHECK(name != kMetadataKey, "save: {}: the format keeps the name \"{}\" for itself", path,
               name);
    items.push_back({&name, t.detach().to(kCPU).contiguous()});
  }
  // Tensors with larger elements first, so that every tensor is aligned in the file.
  std::ranges::stable_sort(items, std::greater(),
                           [](const Item& i) { return itemsize(i.host.dtype()); });
  return items;
}

std::string make_header(const std::string& path, const std::vector<Item>& items,
                        const Metadata& metadata) {
  ordered_json::object_t header;  // emplace_back below skips the linear search: names are unique.
  if (!metadata.empty()) header.emplace_back(kMetadataKey, metadata);
  size_t at = 0;
  for (const Item& i : items) {
    header.emplace_back(*i.name, ordered_json{{"dtype", kNames[static_cast<int>(i.host.dtype())]},
                                              {"shape", i.host.sizes().vec()},
                                              {"data_offsets", {at, at + i.bytes()}}});
    at += i.bytes();
  }
  std::string text;
  try {
    text = ordered_json(std::move(header)).dump();
  } catch (const json::exception& e) {
    fail("save: {}: a name or a metadata text is not UTF-8 ({})", path, e.what());
  }
  text.resize((text.size() + 7) / 8 * 8, ' ');
  BRRR_CHECK(text.size() <= kMaxHeader,
             "save: {}: the names and shapes take {} bytes, the format allows {}", path,
             text.size(), kMaxHeader);
  return text;
}

// --- reading -------------------------------------------------------------------------------------

struct Entry {
  std::string name;
  DType dtype;
  IntList sizes;
  uint64_t begin, end;
};

// Checks what a parsed document no longer shows, duplicate names, and the nesting depth before the
// document is built. (json::parse() with a callback is quadratic in the number of objects.)
struct Checker final : json::json_sax_t {
  std::string wrong;

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(size_t) override { return begin(); }
  bool start_array(size_t) override { return begin(); }
  bool end_object() override { return end(); }
  bool end_array() override { return end(); }
  bool key(string_t& name) override {
    if (!names_.back().insert(name).second) {
      wrong = fmt::format("the name \"{}\" appears twice", shown(name));
    }
    return wrong.empty();
  }
  // json::parse() reports the same error afterwards.
  bool parse_error(size_t, const std::string&, const json::exception&) override { return false; }

 private:
  bool begin() {
    if (names_.size() > 2) wrong = "the header nests deeper than the format does";
    names_.emplace_back();
    return wrong.empty();
  }
  bool end() {
    names_.pop_back();
    return true;
  }
  std::vector<std::set<std::string>> names_;
};

class Reader {
 public:
  explicit Reader(const std::string& path) : path_(path), file_(path) {}

  StateDict read(Metadata& metadata) {
    const json header = parse(header_text());
    std::vector<Entry> entries;
    for (const auto& [name, value] : header.items()) {
      if (name == kMetadataKey)
        read_metadata(value, metadata);
      else
        entries.push_back(read_entry(name, value));
    }
    check_layout(entries);
    StateDict dict;
    for (const Entry& e : entries) dict[e.name] = read_tensor(e);
    return dict;
  }

 private:
  template <class... A> [[noreturn]] void bad(fmt::format_string<A...> text, A&&... args) const {
    fail("load: {}: {}", path_, fmt::format(text, std::forward<A>(args)...));
  }
  template <class... A>
  [[noreturn]] void bad_tensor(const std::string& name, fmt::format_string<A...> text,
                               A&&... args) const {
    bad("tensor \"{}\": {}", shown(name), fmt::format(text, std::forward<A>(args)...));
  }

  std::string header_text() {
    uint64_t length = 0;
    if (file_.size() < 8) bad("{} bytes are too few for a safetensors file", file_.size());
    file_.read(&length, 0, 8);
    if (length > kMaxHeader || length > file_.size() - 8) {
      bad("the header claims {} bytes, the file has {} (cut off, or no safetensors file)", length,
          file_.size());
    }
    data_ = 8 + length;
    std::string text = file_.read(8, length);
    if (text.empty() || text[0] != '{') bad("the header does not start with '{{'");
    return text;
  }

  json parse(const std::string& text) const {
    // The parser would treat it as the end of the text.
    if (text.find('\0') != std::string::npos) bad("a byte 0 in the header");
    Checker check;
    if (!json::sax_parse(text, &check) && !check.wrong.empty()) bad("{}", check.wrong);
    try {
      return json::parse(text);
    } catch (const json::exception& e) {
      bad("the header is not JSON ({})", e.what());
    }
  }

  void read_metadata(const json& value, Metadata& metadata) const {
    if (!value.is_object()) bad("{} is not an object", kMetadataKey);
    for (const auto& [key, text] : value.items()) {
      if (!text.is_string()) bad("{}: \"{}\" is not a string", kMetadataKey, shown(key));
      metadata[key] = text.get<std::string>();
    }
  }

  const json& member(const std::string& name, const json& value, const char* key) const {
    const auto it = value.find(key);
    if (it == value.end()) bad_tensor(name, "has no {}", key);
    return *it;
  }

  uint64_t number(const std::string& name, const json& value, const char* what) const {
    if (!value.is_number_unsigned()) bad_tensor(name, "{} is not a whole number >= 0", what);
    return value.get<uint64_t>();
  }

  DType read_dtype(const std::string& name, const json& value) const {
    if (!value.is_string()) bad_tensor(name, "dtype is not a string");
    const auto& text = value.get_ref<const std::string&>();
    for (int i = 0; i < kNumDTypes; ++i) {
      if (text == kNames[i]) return static_cast<DType>(i);
    }
    bad_tensor(name, "dtype {} is not supported; known are {}", shown(text),
               fmt::join(kNames, " "));
  }

  Entry read_entry(const std::string& name, const json& value) const {
    if (!value.is_object() || value.size() != 3) {
      bad_tensor(name, "is not an object of dtype, shape and data_offsets");
    }
    Entry e{name, read_dtype(name, member(name, value, "dtype")), {}, 0, 0};
    const json& shape = member(name, value, "shape");
    if (!shape.is_array()) bad_tensor(name, "shape is not a list");
    if (shape.size() > kMaxDims) bad_tensor(name, "{} dims, at most {}", shape.size(), kMaxDims);
    for (const json& d : shape) {
      const uint64_t size = number(name, d, "a size");
      e.sizes.push_back(static_cast<int64_t>(std::min<uint64_t>(size, INT64_MAX)));
    }
    int64_t elements;
    if (!product_of(e.sizes, elements)) bad_tensor(name, "the shape overflows");
    const auto bytes = static_cast<uint64_t>(elements) * itemsize(e.dtype);
    const json& offsets = member(name, value, "data_offsets");
    if (!offsets.is_array() || offsets.size() != 2) {
      bad_tensor(name, "data_offsets is not a pair");
    }
    e.begin = number(name, offsets[0], "data_offsets");
    e.end = number(name, offsets[1], "data_offsets");
    if (e.begin > e.end || e.end > file_.size() - data_) {
      bad_tensor(name, "bytes {} to {} lie outside the {} bytes of data (cut off?)", e.begin, e.end,
                 file_.size() - data_);
    }
    if (e.end - e.begin != bytes) {
      bad_tensor(name, "{} bytes for {}{}, which takes {}", e.end - e.begin, brrr::name(e.dtype),
                 to_string(e.sizes), bytes);
    }
    return e;
  }

  // The format requires that the tensors cover the data without gaps or overlaps.
  void check_layout(std::vector<Entry>& entries) const {
    std::ranges::sort(entries, {}, [](const Entry& e) { return std::pair(e.begin, e.end); });
    uint64_t at = 0;
    for (const Entry& e : entries) {
      if (e.begin != at) {
        bad_tensor(e.name, "{} the tensor before it (byte {} instead of {})",
                   e.begin < at ? "overlaps" : "leaves a gap after", e.begin, at);
      }
      at = e.end;
    }
    if (at != file_.size() - data_) {
      bad("{} bytes of data, but the tensors take {}", file_.size() - data_, at);
    }
  }

  Tensor read_tensor(const Entry& e) const {
    Tensor t;
    try {
      t = raw_empty(e.sizes, e.dtype, kCPU);
    } catch (const Error& error) {
      bad_tensor(e.name, "{} of the file's {} bytes: {}", e.end - e.begin, file_.size(),
                 error.what());
    }
    auto* p = static_cast<unsigned char*>(t.data_ptr());
    file_.read(p, data_ + e.begin, e.end - e.begin);
    if (e.dtype == kBool && std::any_of(p, p + (e.end - e.begin), [](auto b) { return b > 1; })) {
      bad_tensor(e.name, "a BOOL is neither 0 nor 1");
    }
    return t;
  }

  std::string path_;
  InputFile file_;
  uint64_t data_ = 0;  // Offset of the tensors' bytes.
};

}  // namespace

void save(const std::string& path, const StateDict& dict, const Metadata& metadata) {
  check_host_access("save", nullptr);
  const std::vector<Item> items = on_host(path, dict);
  const std::string header = make_header(path, items, metadata);
  const uint64_t length = header.size();
  std::vector<Bytes> parts = {{&length, sizeof length}, {header.data(), header.size()}};
  for (const Item& i : items) parts.push_back({i.host.data_ptr(), i.bytes()});
  replace_file(path, parts);
}

StateDict load(const std::string& path) {
  Metadata unused;
  return load(path, unused);
}

StateDict load(const std::string& path, Metadata& metadata) {
  check_host_access("load", nullptr);
  try {
    Metadata found;
    StateDict dict = Reader(path).read(found);
    metadata = std::move(found);
    return dict;
  } catch (const std::bad_alloc&) {
    fail("load: {}: out of memory for the tensors that its header lists", path);
  }
}

}  // namespace brrr
