#pragma once

namespace brrr::cpu {

// The text every generated CPU kernel starts with: ops/vec.h to vec_random.h without their #include
// lines. Embedded at build time, so that eager and generated code share one definition of each
// function and an installed library needs no header at run time.
const char* prelude();

// The compiler flags, separated by spaces, that change results or vector width. Generated code is
// built with exactly these, as the library was, or graph mode would not equal eager to the last
// bit.
const char* jit_flags();

}  // namespace brrr::cpu
