# The module brrr_cuda, the only part that needs the CUDA Toolkit, of which it takes headers and
# libraries, no nvcc. brrr looks for it beside itself when a GPU is asked for.

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
  if(cuda_missing AND BRRR_CUDA STREQUAL "AUTO")
    message(STATUS "brrr: of the CUDA Toolkit not found: ${cuda_missing}; brrr_cuda is left out")
  elseif(cuda_missing)
    message(FATAL_ERROR "brrr: BRRR_CUDA=${BRRR_CUDA}, but of the CUDA Toolkit not found: "
      "${cuda_missing}\nSet CUDAToolkit_ROOT to where it is, or BRRR_CUDA=OFF.")
  endif()
endif()
if(BRRR_CUDA AND NOT cuda_missing)
  get_filename_component(cuda_libraries "${BRRR_cuda_LIBRARY_cudart}" DIRECTORY)
  message(STATUS "brrr: the module brrr_cuda is built with the CUDA Toolkit in ${cuda_libraries}")
  file(GLOB cuda_sources CONFIGURE_DEPENDS backends/cuda/module/*.cpp)
  add_library(brrr_cuda MODULE ${cuda_sources})
  target_compile_options(brrr_cuda PRIVATE ${brrr_options} ${sanitize})
  # RPATH and not RUNPATH: it also holds for what NVRTC opens itself, libnvrtc-builtins.
  target_link_options(brrr_cuda PRIVATE ${sanitize} LINKER:--disable-new-dtags)
  target_include_directories(brrr_cuda PRIVATE "${PROJECT_SOURCE_DIR}")
  target_link_libraries(brrr_cuda PRIVATE brrr::cuda brrr::fmt)
  set_target_properties(brrr_cuda PROPERTIES
    CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON
    LIBRARY_OUTPUT_DIRECTORY "${CMAKE_RUNTIME_OUTPUT_DIRECTORY}"
    BUILD_RPATH "$ORIGIN" INSTALL_RPATH "$ORIGIN;${cuda_libraries}")
  install(TARGETS brrr_cuda LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}")
endif()
