# The module brrr_cuda, the only part that needs the CUDA Toolkit: its headers and libraries, not
# nvcc. brrr looks for the module beside itself on first use of a GPU.
include(backends/module.cmake)

# brrr_find_cuda(<result>): defines brrr::cuda and sets <result> to "", or to what is missing.
function(brrr_find_cuda result)
  set(brrr_missing "")
  list(PREPEND CMAKE_PREFIX_PATH ${CUDAToolkit_ROOT} $ENV{CUDAToolkit_ROOT})
  list(APPEND CMAKE_PREFIX_PATH $ENV{CUDA_HOME} $ENV{CUDA_PATH} /usr/local/cuda)
  brrr_find(cuda DEBIAN nvidia-cuda-toolkit HEADERS cuda_runtime_api.h nvrtc.h cublasLt.h
    LIBRARIES cudart nvrtc cublasLt SUFFIXES lib64)
  if(NOT brrr_missing)
    file(STRINGS "${BRRR_cuda_INCLUDE_cuda_runtime_api_h}/cuda_runtime_api.h" version
      REGEX "^#define CUDART_VERSION +[0-9]+" LIMIT_COUNT 1)
    string(REGEX REPLACE "[^0-9]" "" version "${version}")
    if(version LESS 12040)
      set(brrr_missing "12.4 or newer (in ${BRRR_cuda_INCLUDE_cuda_runtime_api_h} is ${version})")
    endif()
  endif()
  list(JOIN brrr_missing ", " brrr_missing)
  set(${result} "${brrr_missing}" PARENT_SCOPE)
endfunction()

if(BRRR_CUDA)
  brrr_find_cuda(cuda_missing)
  if(cuda_missing)
    brrr_leave_out(BRRR_CUDA brrr_cuda "${cuda_missing} (of the CUDA Toolkit)"
      "Set CUDAToolkit_ROOT to where it is")
  endif()
endif()
if(BRRR_CUDA AND NOT cuda_missing)
  get_filename_component(cuda_libraries "${BRRR_cuda_LIBRARY_cudart}" DIRECTORY)
  message(STATUS "brrr: the module brrr_cuda is built with the CUDA Toolkit in ${cuda_libraries}")
  file(GLOB cuda_sources CONFIGURE_DEPENDS backends/cuda/module/*.cpp)
  brrr_add_module(brrr_cuda ${cuda_sources})
  # RPATH, not RUNPATH: it also applies to libnvrtc-builtins, which NVRTC opens itself.
  target_link_options(brrr_cuda PRIVATE LINKER:--disable-new-dtags)
  target_link_libraries(brrr_cuda PRIVATE brrr::cuda brrr::fmt)
  set_target_properties(brrr_cuda PROPERTIES INSTALL_RPATH "$ORIGIN;${cuda_libraries}")
endif()
