# How brrr finds the libraries it uses, as imported targets brrr::<name>. Also installed: programs
# that link the static library have to link OpenBLAS and {fmt} too.
#
# Headers and libraries are looked up directly, because some of Debian's CMake packages hard-code
# /usr and so fail where the packages are unpacked into a prefix (CMAKE_PREFIX_PATH).
include(CheckCXXSourceCompiles)
include(CMakePushCheckState)

# brrr_find(<name> DEBIAN <package> HEADERS <header>...
#           [LIBRARIES <library>...] [SUFFIXES <dir>...])
# Defines brrr::<name>, or appends to brrr_missing (what) and brrr_missing_packages (to install).
macro(brrr_find name)
  if(NOT TARGET brrr::${name})
    cmake_parse_arguments(_arg "" "DEBIAN" "HEADERS;LIBRARIES;SUFFIXES" ${ARGN})
    _brrr_locate(${name} INCLUDE "${_arg_HEADERS}" "${_arg_SUFFIXES}")
    _brrr_locate(${name} LIBRARY "${_arg_LIBRARIES}" "${_arg_SUFFIXES}")
    if(_brrr_absent)
      list(APPEND brrr_missing ${_brrr_absent})
      list(APPEND brrr_missing_packages ${_arg_DEBIAN})
      set(_brrr_absent "")
    else()
      add_library(brrr::${name} INTERFACE IMPORTED)
      target_include_directories(brrr::${name} INTERFACE ${_brrr_INCLUDE})
      target_link_libraries(brrr::${name} INTERFACE ${_brrr_LIBRARY})
      # A library's own dependencies may be beside it, or one folder up (variants of OpenBLAS).
      foreach(_brrr_item IN LISTS _brrr_LIBRARY)
        get_filename_component(_brrr_dir "${_brrr_item}" DIRECTORY)
        target_link_options(brrr::${name} INTERFACE
          "LINKER:-rpath-link,${_brrr_dir}" "LINKER:-rpath-link,${_brrr_dir}/..")
      endforeach()
    endif()
  endif()
endmacro()

# Sets _brrr_<kind> to the folders or files found and appends the missing ones to _brrr_absent.
macro(_brrr_locate name kind items suffixes)
  set(_brrr_${kind} "")
  foreach(_brrr_item ${items})
    string(MAKE_C_IDENTIFIER "BRRR_${name}_${kind}_${_brrr_item}" _brrr_var)
    if("${kind}" STREQUAL "INCLUDE")
      find_path(${_brrr_var} ${_brrr_item} PATH_SUFFIXES ${suffixes})
    else()
      find_library(${_brrr_var} ${_brrr_item} PATH_SUFFIXES ${suffixes})
    endif()
    mark_as_advanced(${_brrr_var})
    if(${_brrr_var})
      list(APPEND _brrr_${kind} "${${_brrr_var}}")
    elseif("${kind}" STREQUAL "INCLUDE")
      list(APPEND _brrr_absent "<${_brrr_item}>")
    else()
      list(APPEND _brrr_absent "lib${_brrr_item}")
    endif()
  endforeach()
endmacro()

# Debian keeps each variant of OpenBLAS in a folder of its own; the plain name is a link that only
# an installed package has. The OpenMP variant comes first: it starts no threads of its own.
macro(brrr_find_openblas)
  set(_brrr_variants "")
  set(_brrr_arch ${CMAKE_SYSTEM_PROCESSOR}-linux-gnu)
  foreach(_brrr_variant openblas-openmp openblas-pthread openblas-serial openblas)
    list(APPEND _brrr_variants ${_brrr_arch}/${_brrr_variant} ${_brrr_variant})
  endforeach()
  brrr_find(openblas DEBIAN libopenblas-openmp-dev HEADERS cblas.h LIBRARIES openblas
    SUFFIXES ${_brrr_variants} ${_brrr_arch})
  if(TARGET brrr::openblas)
    # Another BLAS with the same cblas.h would have neither function.
    cmake_push_check_state(RESET)
    set(CMAKE_REQUIRED_LIBRARIES brrr::openblas)
    set(CMAKE_REQUIRED_QUIET ON)
    check_cxx_source_compiles("
        #include <cblas.h>
        int main() { openblas_set_num_threads(1); return openblas_get_corename()[0] == 0; }"
      BRRR_OPENBLAS_WORKS)
    cmake_pop_check_state()
    if(NOT BRRR_OPENBLAS_WORKS)
      list(APPEND brrr_missing "OpenBLAS behind ${BRRR_openblas_LIBRARY_openblas}")
      list(APPEND brrr_missing_packages libopenblas-openmp-dev)
      unset(BRRR_OPENBLAS_WORKS CACHE)  # so that the next configure looks again
    endif()
  endif()
endmacro()

# The libraries that brrr itself links.
macro(brrr_find_runtime)
  set(THREADS_PREFER_PTHREAD_FLAG ON)
  find_package(Threads REQUIRED)
  brrr_find_openblas()
  brrr_find(fmt DEBIAN libfmt-dev HEADERS fmt/core.h LIBRARIES fmt)
endmacro()
