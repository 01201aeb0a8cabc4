# The module brrr_nccl, the only part that needs NCCL; built if brrr_cuda is. brrr looks for it
# beside itself when several processes exchange tensors on GPUs.

set(BRRR_NCCL AUTO CACHE STRING "Build the module brrr_nccl: AUTO (where there is NCCL), ON or OFF")
set_property(CACHE BRRR_NCCL PROPERTY STRINGS AUTO ON OFF)

# brrr_find_nccl(<result>): defines brrr::nccl and sets <result> to "", or to what is missing.
function(brrr_find_nccl result)
  set(brrr_missing "")
  list(PREPEND CMAKE_PREFIX_PATH ${NCCL_ROOT} $ENV{NCCL_ROOT} ${CUDAToolkit_ROOT}
    $ENV{CUDAToolkit_ROOT})
  list(APPEND CMAKE_PREFIX_PATH $ENV{CUDA_HOME} $ENV{CUDA_PATH} /usr/local/cuda)
  if(NOT TARGET brrr_cuda)
    list(APPEND brrr_missing "the module brrr_cuda")
  endif()
  brrr_find(nccl DEBIAN libnccl-dev HEADERS nccl.h LIBRARIES nccl SUFFIXES lib64)
  list(JOIN brrr_missing ", " brrr_missing)
  set(${result} "${brrr_missing}" PARENT_SCOPE)
endfunction()

if(BRRR_NCCL)
  brrr_find_nccl(nccl_missing)
  if(nccl_missing)
    brrr_leave_out(BRRR_NCCL "brrr_nccl (GPUs of several processes go through pinned memory)"
      "${nccl_missing}" "Set NCCL_ROOT to where NCCL is")
  endif()
endif()
if(BRRR_NCCL AND NOT nccl_missing)
  get_filename_component(nccl_libraries "${BRRR_nccl_LIBRARY_nccl}" DIRECTORY)
  message(STATUS "brrr: the module brrr_nccl is built with NCCL in ${nccl_libraries}")
  brrr_add_module(brrr_nccl backends/nccl/module.cpp)
  target_include_directories(brrr_nccl SYSTEM PRIVATE "${BRRR_cuda_INCLUDE_cuda_runtime_api_h}")
  target_link_libraries(brrr_nccl PRIVATE brrr::nccl "${BRRR_cuda_LIBRARY_cudart}")
  set_target_properties(brrr_nccl PROPERTIES
    INSTALL_RPATH "$ORIGIN;${nccl_libraries};${cuda_libraries}")
endif()
