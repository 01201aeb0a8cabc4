#include "models/text/tokenizer.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "core/check.h"
#include "core/text.h"
#include "models/text/gpt2_tokenizer.h"
#include "models/text/utf8.h"

namespace brrr::data {

using nlohmann::json;

namespace {

// Calls f(code point, byte offset) for each character; throws at invalid UTF-8.
template <class F> void each_character(std::string_view text, const F& f) {
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = decode_utf8(text, at);
    BRRR_CHECK(c.valid(),
               "CharTokenizer: byte {:#04x} at offset {} is not UTF-8; use the byte tokenizer for "
               "texts in other encodings",
               static_cast<unsigned char>(text[at]), at);
    f(c, at);
    at += c.length;
  }
}

}  // namespace

size_t checked_id(const char* what, const std::vector<int64_t>& ids, size_t i, int64_t vocab) {
  BRRR_CHECK(ids[i] >= 0 && ids[i] < vocab, "{}: id {} at position {} is not in [0, {})", what,
             ids[i], i, vocab);
  return static_cast<size_t>(ids[i]);
}

CharTokenizer::CharTokenizer(std::string_view text) {
  BRRR_CHECK(!text.empty(), "CharTokenizer: the text is empty, so there are no characters to know");
  std::vector<bool> seen(0x110000);
  each_character(text, [&](CodePoint c, size_t) {
    if (!seen[c.value]) vocab_.push_back(c.value);
    seen[c.value] = true;
  });
  std::sort(vocab_.begin(), vocab_.end());
}

std::vector<int64_t> CharTokenizer::encode(std::string_view text) const {
  moved_.check();
  std::vector<int32_t> id_of(vocab_.back() + 1, -1);
  for (size_t i = 0; i < vocab_.size(); ++i) id_of[vocab_[i]] = static_cast<int32_t>(i);
  std::vector<int64_t> ids;
  ids.reserve(text.size());
  each_character(text, [&](CodePoint c, size_t at) {
    const int32_t id = c.value < id_of.size() ? id_of[c.value] : -1;
    BRRR_CHECK(id >= 0,
               "CharTokenizer: the character U+{:04X}{} at offset {} is not one of the {} of the "
               "text this tokenizer was made from",
               static_cast<uint32_t>(c.value),
               is_control(c.value) ? "" : fmt::format(" '{}'", text.substr(at, c.length)), at,
               vocab_.size());
    ids.push_back(id);
  });
  return ids;
}

std::string CharTokenizer::decode(const std::vector<int64_t>& ids) const {
  moved_.check();
  std::string text;
  for (size_t i = 0; i < ids.size(); ++i) {
    append_utf8(text, vocab_[checked_id("CharTokenizer", ids, i, vocab_size())]);
  }
  return text;
}

std::string CharTokenizer::state() const {
  moved_.check();
  std::string characters;
  for (char32_t c : vocab_) append_utf8(characters, c);
  return json{{"tokenizer", name()}, {"characters", characters}}.dump();
}

std::vector<int64_t> ByteTokenizer::encode(std::string_view text) const {
  const auto* bytes = reinterpret_cast<const unsigned char*>(text.data());
  return {bytes, bytes + text.size()};
}

std::string ByteTokenizer::decode(const std::vector<int64_t>& ids) const {
  std::string text;
  for (size_t i = 0; i < ids.size(); ++i) {
    text += static_cast<char>(checked_id("ByteTokenizer", ids, i, 256));
  }
  return text;
}

std::string ByteTokenizer::state() const { return json{{"tokenizer", name()}}.dump(); }

std::unique_ptr<Tokenizer> tokenizer_from_state(const std::string& state) {
  const json value = json::parse(state, nullptr, false);
  BRRR_CHECK(value.is_object(), "tokenizer_from_state: {} bytes that are not a JSON object",
             state.size());
  const auto text = [&](const char* key) -> const std::string& {
    const auto it = value.find(key);
    BRRR_CHECK(it != value.end() && it->is_string(), "tokenizer_from_state: no string \"{}\"", key);
    return it->get_ref<const std::string&>();
  };
  const std::string& name = text("tokenizer");
  if (name == "byte") return std::make_unique<ByteTokenizer>();
  if (name == "char") return std::make_unique<CharTokenizer>(text("characters"));
  if (name == "gpt2") return std::make_unique<GPT2Tokenizer>(GPT2Tokenizer::from_state(state));
  fail("tokenizer_from_state: unknown tokenizer \"{}\"; known are byte, char and gpt2",
       shown(name, 40));
}

}  // namespace brrr::data
