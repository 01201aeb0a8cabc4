# The C++ peer programs, which use libtorch. A peer is a separate process and does not link brrr,
# because libtorch shares OpenBLAS's settings. It is optional: a missing libtorch is not an error.

function(brrr_add_peer name)  # <library>...
  add_executable(${name} tests/bench/${name}.cpp)
  target_compile_options(${name} PRIVATE ${brrr_options} ${sanitize})
  target_link_options(${name} PRIVATE ${sanitize})
  target_include_directories(${name} PRIVATE "${PROJECT_SOURCE_DIR}")
  target_link_libraries(${name} PRIVATE ${ARGN} Threads::Threads ${CMAKE_DL_LIBS})
  if("brrr::torch" IN_LIST ARGN)
    # libtorch 1.13: clang rejects its headers in C++20.
    set_target_properties(${name} PROPERTIES CXX_STANDARD 17)
  endif()
endfunction()

brrr_find(torch DEBIAN libtorch-dev HEADERS torch/script.h torch/torch.h
  LIBRARIES torch torch_cpu c10 SUFFIXES torch/csrc/api/include)
if(TARGET brrr::torch)
  brrr_add_peer(peer_torch brrr::torch)
else()
  message(STATUS "brrr: libtorch not found (Debian: libtorch-dev), peer_torch is left out")
endif()

# libtorch's part of bench --peers, which builds it with the libtorch of the PyTorch that it
# compares with, else with Debian's.
set(BRRR_TORCH "" CACHE PATH "The folder of an installed PyTorch, for bench --peers")
set(steps_torch brrr::torch)
if(EXISTS "${BRRR_TORCH}/lib/libtorch_cpu.so")
  set(steps_torch brrr_python_torch)
  add_library(brrr_python_torch INTERFACE)
  target_include_directories(brrr_python_torch SYSTEM INTERFACE
    "${BRRR_TORCH}/include" "${BRRR_TORCH}/include/torch/csrc/api/include")
  # Not the library torch, which loads GPU libraries.
  target_link_libraries(brrr_python_torch INTERFACE
    "${BRRR_TORCH}/lib/libtorch_cpu.so" "${BRRR_TORCH}/lib/libc10.so")
endif()
if(TARGET ${steps_torch})
  brrr_add_peer(peer_torch_steps ${steps_torch} brrr::json)
  # PyTorch bundles an fmt of its own, so either one is used header-only.
  target_compile_definitions(peer_torch_steps PRIVATE FMT_HEADER_ONLY)
  set_target_properties(peer_torch_steps PROPERTIES EXCLUDE_FROM_ALL ON)
else()
  # Removes a program that was built with a libtorch that is gone.
  add_custom_target(peer_torch_steps COMMAND "${CMAKE_COMMAND}" -E rm -f
    "${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/peer_torch_steps")
endif()
