# Compiles through ccache where it is installed and no launcher is set.
find_program(BRRR_CCACHE ccache)
if(BRRR_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # SLOPPINESS: files that use a precompiled header are cached only if its macros may be ignored.
  # DEPEND: compares headers by their bytes alone. With preprocessed output compared as well, a
  # changed comment returned the older precompiled header, which gcc's `#pragma once`, by bytes, did
  # not recognise: each class was defined twice. NAMESPACE: leaves entries from that time behind.
  set(CMAKE_CXX_COMPILER_LAUNCHER "${CMAKE_COMMAND}" -E env
    CCACHE_SLOPPINESS=pch_defines,time_macros CCACHE_DEPEND=1 CCACHE_NAMESPACE=brrr-depend
    "${BRRR_CCACHE}")
endif()
