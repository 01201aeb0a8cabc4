#pragma once
// GPT-2's pre-tokenisation: splits a text into pieces; byte-pair merges never cross piece borders.

#include <cstddef>
#include <string_view>

namespace brrr::data {

/// The end of the piece that starts at byte `at` < text.size(), by the published regular expression
/// (github.com/openai/gpt-2, encoder.py):
///   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
/// unicode_classes.h defines \p{L} and \p{N}; \s is Unicode's White_Space. An invalid UTF-8 byte
/// counts as a character of no class.
size_t gpt2_piece_end(std::string_view text, size_t at);

}  // namespace brrr::data
