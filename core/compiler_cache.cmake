# Compiles through ccache where it is installed and no launcher was asked for.
find_program(BRRR_CCACHE ccache)
if(BRRR_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # SLOPPINESS: what a precompiled header went into is kept only where its macros may be ignored.
  # DEPEND: headers are compared by their bytes alone. By the preprocessor's output, too, a changed
  # comment gave back the older precompiled header, whose `#pragma once` gcc keeps by bytes: each
  # class is defined twice. NAMESPACE: leaves behind what was kept in that way.
  set(CMAKE_CXX_COMPILER_LAUNCHER "${CMAKE_COMMAND}" -E env
    CCACHE_SLOPPINESS=pch_defines,time_macros CCACHE_DEPEND=1 CCACHE_NAMESPACE=brrr-depend
    "${BRRR_CCACHE}")
endif()
