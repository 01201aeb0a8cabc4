# The module brrr_mpi, the only part that needs MPI (any MPI-3 implementation). brrr looks for it
# beside itself when it joins a run of several processes.

set(BRRR_MPI AUTO CACHE STRING "Build the module brrr_mpi: AUTO (where there is MPI), ON or OFF")
set_property(CACHE BRRR_MPI PROPERTY STRINGS AUTO ON OFF)

if(BRRR_MPI)
  set(MPI_CXX_SKIP_MPICXX ON)
  find_package(MPI QUIET COMPONENTS CXX)
  if(NOT MPI_CXX_FOUND)
    brrr_leave_out(BRRR_MPI "brrr_mpi (one process a run)" "MPI"
      "On Debian or Ubuntu: apt-get install libopenmpi-dev openmpi-bin")
  endif()
endif()
if(BRRR_MPI AND MPI_CXX_FOUND)
  brrr_add_module(brrr_mpi backends/mpi/module.cpp)
  target_link_libraries(brrr_mpi PRIVATE MPI::MPI_CXX)
endif()
