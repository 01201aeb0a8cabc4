#pragma once
// Reads what Mode::Auto measured and chose from the text of explain().

#include <doctest/doctest.h>

#include <cstdio>
#include <string>

namespace brrr::test {

/// Checks that both ways were timed and the faster was kept; returns whether that is the replay.
inline bool keeps_the_faster(const std::string& text) {
  const size_t at = text.find("auto: replay ");
  double replay_us = 0, eager_us = 0;
  char kept[8] = "";
  const int read = at == text.npos ? 0
                                   : std::sscanf(text.c_str() + at,
                                                 "auto: replay %lf us, eager %lf us, keeps %7s",
                                                 &replay_us, &eager_us, kept);
  REQUIRE_MESSAGE(read == 3, text);
  const bool replay = std::string(kept) == "replay";
  CHECK_MESSAGE((replay || std::string(kept) == "eager"), text);
  CHECK_MESSAGE((replay ? replay_us <= eager_us : eager_us <= replay_us), text);
  return replay;
}

}  // namespace brrr::test
