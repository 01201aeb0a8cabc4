#include "backends/cpu/host_compiler.h"

namespace brrr::cpu {

const char* prelude() {
  // Adjacent raw string literals: the build splits the text, since long literals are not portable.
  static const char text[] =
#include "cpu_prelude.inc"
      ;
  return text;
}

// BRRR_JIT_FLAGS comes from CMakeLists.txt, from the same list that compiled this file.
const char* jit_flags() { return BRRR_JIT_FLAGS; }

}  // namespace brrr::cpu
