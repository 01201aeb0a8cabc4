# Builds one folder repeatedly from different sources, as when a clone replaces an older one, with
# core/compiler_cache.cmake's ccache: no build may get an object of an older source.
set(work "${BUILD_DIR}/cached")
file(REMOVE_RECURSE "${work}")
set(ENV{CCACHE_DIR} "${work}/cache")
set(ENV{CCACHE_DISABLE})
set(ENV{CCACHE_TEMPDIR})
# The program made of that comment and that number in its precompiled header prints the number.
function(build comment number line)
  file(REMOVE_RECURSE "${work}/source")
  file(COPY "${CMAKE_CURRENT_LIST_DIR}/CMakeLists.txt" DESTINATION "${work}/source")
  file(WRITE "${work}/source/header.h"
    "#pragma once\n// ${comment}\nstruct Number { enum { value = ${number} }; };\n")
  file(WRITE "${work}/source/main.cpp" "#include <cstdio>\n#include \"header.h\"\n"
    "int main() { std::printf(\"%d ${line}\", static_cast<int>(Number::value)); }\n")
  # ccache does not cache a compilation with a header newer than the compilation's start.
  execute_process(COMMAND "${CMAKE_COMMAND}" -E sleep 1.1)
  execute_process(COMMAND "${CMAKE_COMMAND}" -S "${work}/source" -B "${work}/source/build"
    -G "${GENERATOR}" "-DCMAKE_CXX_COMPILER=${COMPILER}" "-DCOMPILER_CACHE=${COMPILER_CACHE}"
    OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
  execute_process(COMMAND "${CMAKE_COMMAND}" --build "${work}/source/build"
    COMMAND_ERROR_IS_FATAL ANY)
  execute_process(COMMAND "${work}/source/build/cached" OUTPUT_VARIABLE printed)
  if(NOT printed STREQUAL "${number} ${line}")
    message(FATAL_ERROR "the program of ${number} ${line} printed ${printed}")
  endif()
endfunction()
build("a comment" 1 first)
build("z comment" 1 second)  # Another source, the same header but for its comment.
build("z comment" 2 second)  # The same source, another header.
