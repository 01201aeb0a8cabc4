#pragma once
// Shared by the tests of tokenizers.

#include <doctest/doctest.h>

#include <string>
#include <string_view>

#include "models/counter_rng.h"
#include "models/text/tokenizer.h"

namespace brrr::test {

/// Random bytes, or random characters of an alphabet.
inline std::string random_bytes(data::CounterRng& rng, size_t n, std::string_view alphabet = {}) {
  std::string s(n, '\0');
  for (char& c : s) {
    c = alphabet.empty() ? static_cast<char>(rng.next()) : alphabet[rng.below(alphabet.size())];
  }
  return s;
}

/// Encodes and decodes the text with the tokenizer and with one restored from its state.
inline void check_round_trip(const data::Tokenizer& t, const std::string& text) {
  const std::vector<int64_t> ids = t.encode(text);
  CHECK(t.decode(ids) == text);
  const auto again = data::tokenizer_from_state(t.state());
  CHECK(again->name() == t.name());
  CHECK(again->vocab_size() == t.vocab_size());
  CHECK(again->encode(text) == ids);
  CHECK(again->state() == t.state());
}

}  // namespace brrr::test
