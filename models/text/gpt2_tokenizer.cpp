#include "models/text/gpt2_tokenizer.h"

#include <algorithm>
#include <queue>
#include <set>
#include <sstream>

#include <nlohmann/json.hpp>

#include "core/check.h"
#include "models/text/gpt2_split.h"
#include "models/text/text.h"
#include "models/text/utf8.h"

namespace brrr::data {

using nlohmann::json;

namespace {

constexpr std::string_view kEndOfText = "<|endoftext|>";
constexpr size_t kMaxTokens = INT32_MAX;

// The files represent each byte by a visible character: printable Latin-1 by itself, the others by
// U+0100 and up, in order.
constexpr struct Alphabet {
  char32_t spelled[256];
  int16_t byte[324];
  constexpr Alphabet() {
    std::fill(std::begin(byte), std::end(byte), -1);
    char32_t next = 256;
    for (int b = 0; b < 256; ++b) {
      const bool itself = (b > 32 && b < 127) || (b > 160 && b != 173);
      spelled[b] = itself ? static_cast<char32_t>(b) : next++;
      byte[spelled[b]] = static_cast<int16_t>(b);
    }
  }
} kAlphabet;

std::string spell(std::string_view bytes) {
  std::string s;
  for (char b : bytes) append_utf8(s, kAlphabet.spelled[static_cast<unsigned char>(b)]);
  return s;
}

std::string in_quotes(const std::string& token) { return '"' + shown(token, 60) + '"'; }

std::string unspell(const std::string& where, const std::string& token) {
  std::string bytes;
  for (size_t at = 0; at < token.size();) {
    const CodePoint c = decode_utf8(token, at);
    const int b = c.value < std::size(kAlphabet.byte) ? kAlphabet.byte[c.value] : -1;
    BRRR_CHECK(c.valid() && b >= 0,
               "{}: the token {} has a character, at its byte {}, that is not in GPT-2's alphabet "
               "for bytes",
               where, in_quotes(token), at);
    bytes += static_cast<char>(b);
    at += c.length;
  }
  return bytes;
}

// Parses a JSON object of token -> id; returns the tokens, indexed by id.
std::vector<std::string> tokens_by_id(const std::string& where, const std::string& text) {
  std::set<std::string> keys;
  const auto watch = [&](int depth, json::parse_event_t event, json& value) {
    using Event = json::parse_event_t;
    const bool start = event == Event::object_start || event == Event::array_start;
    BRRR_CHECK(!start || depth == 0, "{}: a vocabulary is one object of token and id, this nests",
               where);
    if (event == Event::key) {
      const auto& key = value.get_ref<const std::string&>();
      BRRR_CHECK(keys.insert(key).second, "{}: the token {} appears twice", where, in_quotes(key));
    }
    return true;
  };
  json vocabulary;
  try {
    vocabulary = json::parse(text, watch);
  } catch (const json::exception& e) {
    fail("{}: not JSON ({})", where, e.what());
  }
  BRRR_CHECK(vocabulary.is_object(), "{}: not an object of token and id", where);
  std::vector<std::string> tokens(vocabulary.size());
  std::vector<bool> taken(tokens.size());
  for (const auto& [token, value] : vocabulary.items()) {
    BRRR_CHECK(value.is_number_unsigned() && value.get<uint64_t>() < tokens.size(),
               "{}: the id {} of the token {} is not a whole number below {}, the number of "
               "tokens: there is a gap or a wrong id",
               where, value.dump(-1, ' ', true).substr(0, 40), in_quotes(token), tokens.size());
    const size_t id = value.get<size_t>();
    BRRR_CHECK(!taken[id], "{}: the tokens {} and {} have the same id {}", where,
               in_quotes(tokens[id]), in_quotes(token), id);
    taken[id] = true;
    tokens[id] = token;
  }
  return tokens;
}

constexpr uint64_t pair_key(int32_t left, int32_t right) {
  return static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right);
}

}  // namespace

// --- construction --------------------------------------------------------------------------------

GPT2Tokenizer::GPT2Tokenizer(const std::string& vocab_json, const std::string& merges_txt,
                             GPT2TokenizerOptions options)
    : options_(options) {
  read_vocabulary(vocab_json, load_text(vocab_json));
  read_merges(merges_txt, load_text(merges_txt));
}

void GPT2Tokenizer::read_vocabulary(const std::string& where, const std::string& text) {
  const std::vector<std::string> spelled = tokens_by_id(where, text);
  BRRR_CHECK(spelled.size() <= kMaxTokens, "{}: {} tokens are too many", where, spelled.size());
  for (const std::string& token : spelled) {
    BRRR_CHECK(!token.empty(), "{}: the token with id {} is empty", where, tokens_.size());
    tokens_.push_back(unspell(where, token));
    ids_.emplace(tokens_.back(), static_cast<int32_t>(tokens_.size() - 1));
  }
  for (int b = 0; b < 256; ++b) {
    byte_ids_[static_cast<size_t>(b)] = find(std::string(1, static_cast<char>(b)));
    BRRR_CHECK(byte_ids_[static_cast<size_t>(b)] >= 0,
               "{}: no token for the byte {:#04x}; a byte-level vocabulary has all 256", where, b);
  }
  end_of_text_ = find(std::string(kEndOfText));
}

int32_t GPT2Tokenizer::find(const std::string& bytes) const {
  const auto it = ids_.find(bytes);
  return it == ids_.end() ? -1 : it->second;
}

void GPT2Tokenizer::read_merges(const std::string& path, const std::string& text) {
  const size_t lines = static_cast<size_t>(std::count(text.begin(), text.end(), '\n'));
  BRRR_CHECK(lines < kMaxTokens, "{}: {} lines are too many", path, lines);
  std::istringstream in(text);
  std::string line;
  for (int64_t number = 1; std::getline(in, line); ++number) {
    // A checkout on Windows may have converted the line ends.
    if (line.ends_with('\r')) line.pop_back();
    if (number == 1 && line.starts_with("#version")) continue;
    const std::string where = fmt::format("{}, line {}", path, number);
    const size_t blank = line.find(' ');
    BRRR_CHECK(blank != line.npos && blank > 0 && blank + 1 < line.size() &&
                   line.find(' ', blank + 1) == line.npos,
               "{}: not two tokens with one blank between them: {}", where, in_quotes(line));
    const auto known = [&](const std::string& token) {
      const int32_t id = find(unspell(where, token));
      BRRR_CHECK(id >= 0, "{}: {} is not in the vocabulary", where, in_quotes(token));
      return id;
    };
    const std::string l = line.substr(0, blank), r = line.substr(blank + 1);
    const int32_t left = known(l), right = known(r), id = find(tokens_[left] + tokens_[right]);
    BRRR_CHECK(id >= 0, "{}: {} and {} make {}, which is not in the vocabulary", where,
               in_quotes(l), in_quotes(r), in_quotes(l + r));
    const auto rank = static_cast<int32_t>(merges_.size());
    BRRR_CHECK(ranks_.emplace(pair_key(left, right), rank).second,
               "{}: {} and {} were merged before", where, in_quotes(l), in_quotes(r));
    merges_.push_back({left, right, id});
  }
  std::vector<bool> made(tokens_.size());
  for (int32_t id : byte_ids_) made[static_cast<size_t>(id)] = true;
  for (const Merge& merge : merges_) made[static_cast<size_t>(merge.id)] = true;
  if (end_of_text_ >= 0) made[static_cast<size_t>(end_of_text_)] = true;
  const auto unmade = std::find(made.begin(), made.end(), false) - made.begin();
  BRRR_CHECK(unmade == std::ssize(made),
             "{}: none of the {} merges makes the vocabulary's token {} (id {}): cut off, or made "
             "for another vocabulary",
             path, merges_.size(), in_quotes(spell(tokens_[static_cast<size_t>(unmade)])), unmade);
}

// JSON with the contents of the two files.
std::string GPT2Tokenizer::state() const {
  moved_.check();
  json vocabulary = json::object();
  for (size_t id = 0; id < tokens_.size(); ++id) vocabulary[spell(tokens_[id])] = id;
  const auto spelled = [&](int32_t id) { return spell(tokens_[static_cast<size_t>(id)]); };
  std::string merges;
  for (const Merge& m : merges_) merges += spelled(m.left) + ' ' + spelled(m.right) + '\n';
  return json{{"tokenizer", name()},
              {"vocabulary", vocabulary.dump()},
              {"merges", merges},
              {"parse_special", options_.parse_special}}
      .dump();
}

GPT2Tokenizer GPT2Tokenizer::from_state(const std::string& state) {
  const std::string where = "GPT2Tokenizer::from_state";
  const json value = json::parse(state, nullptr, false);
  BRRR_CHECK(value.is_object() && value.contains("vocabulary") && value["vocabulary"].is_string() &&
                 value.contains("merges") && value["merges"].is_string() &&
                 value.contains("parse_special") && value["parse_special"].is_boolean(),
             "{}: {} bytes that are not JSON with vocabulary, merges and parse_special", where,
             state.size());
  GPT2Tokenizer t;
  t.options_.parse_special = value["parse_special"].get<bool>();
  t.read_vocabulary(where, value["vocabulary"].get_ref<const std::string&>());
  t.read_merges(where, value["merges"].get_ref<const std::string&>());
  return t;
}

// --- encoding and decoding -----------------------------------------------------------------------

std::vector<int64_t> GPT2Tokenizer::encode(std::string_view text) const {
  moved_.check();
  std::vector<int64_t> ids;
  ids.reserve(text.size() / 3);
  if (options_.parse_special && end_of_text_ >= 0) {
    for (size_t at; (at = text.find(kEndOfText)) != text.npos;) {
      encode_text(text.substr(0, at), ids);
      ids.push_back(end_of_text_);
      text.remove_prefix(at + kEndOfText.size());
    }
  }
  encode_text(text, ids);
  return ids;
}

void GPT2Tokenizer::encode_text(std::string_view text, std::vector<int64_t>& ids) const {
  // Caches the ids of up to kMaxCached distinct pieces, because words repeat.
  constexpr size_t kMaxCached = 1 << 16, kMaxLength = 64;
  std::unordered_map<std::string_view, std::vector<int32_t>> known;
  std::vector<int32_t> piece_ids;
  for (size_t at = 0; at < text.size();) {
    const size_t end = gpt2_piece_end(text, at);
    const std::string_view piece = text.substr(at, end - at);
    at = end;
    const auto it = known.find(piece);
    if (it != known.end()) {
      ids.insert(ids.end(), it->second.begin(), it->second.end());
      continue;
    }
    encode_piece(piece, piece_ids);
    ids.insert(ids.end(), piece_ids.begin(), piece_ids.end());
    if (piece.size() <= kMaxLength && known.size() < kMaxCached) known[piece] = piece_ids;
  }
}

// The published algorithm: find the adjacent pair of the lowest rank, merge it everywhere from left
// to right, repeat. A heap of the pairs and a linked list of the tokens make it O(n log n).
void GPT2Tokenizer::encode_piece(std::string_view piece, std::vector<int32_t>& ids) const {
  struct Link {
    int32_t id;
    size_t previous, next;
  };
  using Candidate = std::pair<int32_t, size_t>;  // A pair's rank and position.
  constexpr size_t kNone = SIZE_MAX;
  const size_t n = piece.size();
  std::vector<Link> links(n);
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> heap;
  const auto consider = [&](size_t at) {
    if (at == kNone || links[at].next == kNone) return;
    const auto it = ranks_.find(pair_key(links[at].id, links[links[at].next].id));
    if (it != ranks_.end()) heap.emplace(it->second, at);
  };
  for (size_t i = 0; i < n; ++i) {
    links[i] = {byte_ids_[static_cast<unsigned char>(piece[i])], i == 0 ? kNone : i - 1,
                i + 1 == n ? kNone : i + 1};
  }
  for (size_t i = 0; i < n; ++i) consider(i);
  std::vector<size_t> changed;
  while (!heap.empty()) {
    // New pairs wait until all pairs of this rank are merged, even if their own rank is lower.
    const int32_t rank = heap.top().first;
    const auto [left, right, id] = merges_[static_cast<size_t>(rank)];
    changed.clear();
    for (; !heap.empty() && heap.top().first == rank; heap.pop()) {
      const size_t at = heap.top().second;
      Link& link = links[at];
      // An entry is stale once one of its tokens has been merged; absorbed links have id -1.
      if (link.id != left || link.next == kNone || links[link.next].id != right) continue;
      Link& absorbed = links[link.next];
      absorbed.id = -1;
      link.id = id;
      link.next = absorbed.next;
      if (link.next != kNone) links[link.next].previous = at;
      changed.push_back(at);
    }
    for (size_t at : changed) {
      consider(at);
      consider(links[at].previous);
    }
  }
  ids.clear();
  for (size_t at = 0; at != kNone; at = links[at].next) ids.push_back(links[at].id);
}

std::string GPT2Tokenizer::decode(const std::vector<int64_t>& ids) const {
  moved_.check();
  std::string text;
  for (size_t i = 0; i < ids.size(); ++i) {
    text += tokens_[checked_id("GPT2Tokenizer", ids, i, vocab_size())];
  }
  return text;
}

}  // namespace brrr::data
