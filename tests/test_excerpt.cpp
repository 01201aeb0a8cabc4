// The part of the vocabulary that kernels get: everything that they name, and little else.
#include <doctest/doctest.h>

#include <string>

#include "backends/excerpt.h"

using brrr::jit::Vocabulary;

namespace {

// Laid out as ops/vocabulary/ is.
constexpr const char* kText = R"(// A file.
#ifndef GUARD_H
#define GUARD_H
#define FN static inline __attribute__((unused))
namespace a::b {

// A comment with "quotes", it's { no code.
typedef float f32 __attribute__((vector_size(64)));
typedef int i32 __attribute__((vector_size(64)));

constexpr float ln2_high = 1.0f, ln2_low = 0.5f;
template <class T> struct Wrap { using type = T; };
template <> struct Wrap<int> {
  using type = unsigned;
};
template <class V, int parts = sizeof(V) <= 64 ? 1 : sizeof(V) / 64>
struct alignas(64) Parts {
  V v;
};
FN f32 one(f32 x) { return x; }
FN f32 two(f32 x) {
#ifdef WIDE
  return one(x) + "}{"[0];
#else
  return one(x);
#endif
}
FN i32 two(i32 x) { return x + '}'; }
#if defined(WIDE)
#define HAS_THREE
FN f32 three(f32 x) { return x * ln2_low; }
#endif
#ifdef HAS_THREE
FN f32 four(f32 x) { return three(x); }
#else
FN f32 four(f32 x) { return two(x); }
#endif

#define MAKE(V, name, expression) \
  FN V name(V x) {                \
    /* of each { */               \
    return expression;            \
  }
MAKE(f32, five, one(x))
MAKE(f32, six, x)
#undef MAKE
#define MAKE(V) \
  FN V seven(V a, V b) { return a + ln2_high; }
MAKE(f32)
#undef MAKE

}  // namespace a::b
#endif  // GUARD_H
)";

struct Excerpt {
  std::string text;
  explicit Excerpt(const char* kernels) : text(Vocabulary(kText).excerpt(kernels)) {}
  bool has(const char* line) const { return text.find(line) != std::string::npos; }
};

}  // namespace

TEST_CASE("excerpt: named functions, with all overloads and both sides of a condition") {
  const Excerpt e("two(x)");
  CHECK(e.has("FN f32 two(f32 x)"));
  CHECK(e.has("FN i32 two(i32 x)"));
  CHECK(e.has("FN f32 one"));  // Named by two().
  CHECK(e.has("#define FN"));
  CHECK_FALSE(e.has("four"));
  CHECK_FALSE(e.has("Wrap"));
  CHECK_FALSE(e.has("comment"));
  const Excerpt four("four");
  CHECK(four.has("return three(x)"));
  CHECK(four.has("return two(x)"));
  CHECK(four.has("#define HAS_THREE"));
  CHECK(four.has("ln2_low = "));
  CHECK(four.text.find("FN f32 three") < four.text.find("FN f32 four"));
}

TEST_CASE("excerpt: types with their specialisations, and nothing for a template's parameter") {
  const Excerpt e("Wrap<f32>::type");
  CHECK(e.has("struct Wrap {"));
  CHECK(e.has("struct Wrap<int> {"));
  CHECK(e.has("typedef float f32"));
  CHECK(Excerpt("Parts<V>").has("struct alignas(64) Parts"));
  CHECK_FALSE(Excerpt("T V x").has("Parts"));
}

TEST_CASE("excerpt: of a macro's calls only those that define a named function") {
  const Excerpt five("five");
  CHECK(five.has("MAKE(f32, five, one(x))"));
  CHECK(five.has("FN f32 one"));
  CHECK_FALSE(five.has("MAKE(f32, six"));
  CHECK(Excerpt("seven").has("MAKE(f32)\n"));
  CHECK_FALSE(Excerpt("seven").has("six"));
}

TEST_CASE("excerpt: conditions and namespaces stay even where nothing else does") {
  const Excerpt nothing("");
  for (const char* line : {"#ifndef GUARD_H\n#define GUARD_H", "namespace a::b {",
                           "}  // namespace a::b", "#endif  // GUARD_H", "#if defined(WIDE)"}) {
    CAPTURE(std::string(line));
    CHECK(nothing.has(line));
  }
  CHECK_FALSE(nothing.has("FN"));
  // In kernels comments and strings name nothing; unterminated text does not hang.
  CHECK_FALSE(Excerpt("/* two */ // two\n \"two\" 'two' x.two2").has("two"));
  CHECK(Excerpt("\"two").text == nothing.text);
  const char* const bare = "#define EMPTY(V)\nEMPTY(f32)\n#\n";
  CHECK(Vocabulary(bare).excerpt("") == bare);
  CHECK(Excerpt("/* two").text == nothing.text);
}
