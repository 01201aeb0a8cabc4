#pragma once
// Internal error helpers (formatting stays out of the public headers).

#include <fmt/format.h>

#include "core/error.h"

namespace brrr {

template <class... A>
[[noreturn, gnu::noinline, gnu::cold]] void fail(fmt::format_string<A...> text, A&&... args) {
  throw Error(fmt::format(text, std::forward<A>(args)...));
}

}  // namespace brrr

/// Throws brrr::Error with the formatted text unless `cond` holds.
#define BRRR_CHECK(cond, ...)                                    \
  do {                                                           \
    if (__builtin_expect(!(cond), 0)) ::brrr::fail(__VA_ARGS__); \
  } while (0)
