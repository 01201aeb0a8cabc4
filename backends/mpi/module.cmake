# The module brrr_mpi, the only part that needs MPI (any of MPI-3). brrr looks for it beside itself
# when a run of several processes is joined.

set(BRRR_MPI AUTO CACHE STRING "Build the module brrr_mpi: AUTO (where there is MPI), ON or OFF")
set_property(CACHE BRRR_MPI PROPERTY STRINGS AUTO ON OFF)

if(BRRR_MPI)
  set(MPI_CXX_SKIP_MPICXX ON)
  find_package(MPI QUIET COMPONENTS CXX)
  if(NOT MPI_CXX_FOUND AND BRRR_MPI STREQUAL "AUTO")
    message(STATUS "brrr: no MPI found; brrr_mpi is left out: one process a run")
  elseif(NOT MPI_CXX_FOUND)
    message(FATAL_ERROR "brrr: BRRR_MPI=${BRRR_MPI}, but no MPI was found.\n"
      "On Debian or Ubuntu: apt-get install libopenmpi-dev openmpi-bin. Or set BRRR_MPI=OFF.")
  endif()
endif()
if(BRRR_MPI AND MPI_CXX_FOUND)
  add_library(brrr_mpi MODULE backends/mpi/module.cpp)
  target_compile_options(brrr_mpi PRIVATE ${brrr_options} ${sanitize})
  target_link_options(brrr_mpi PRIVATE ${sanitize})
  target_include_directories(brrr_mpi PRIVATE "${PROJECT_SOURCE_DIR}")
  target_link_libraries(brrr_mpi PRIVATE MPI::MPI_CXX)
  set_target_properties(brrr_mpi PROPERTIES
    CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON
    LIBRARY_OUTPUT_DIRECTORY "${CMAKE_RUNTIME_OUTPUT_DIRECTORY}")
  install(TARGETS brrr_mpi LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}")
endif()
