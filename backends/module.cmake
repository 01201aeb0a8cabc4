# Functions shared by the modules that brrr opens on first use; each module is the only code that
# needs its library.

# brrr_leave_out(<option> <module> <missing> <hint>): reports it; an error where <option> is ON.
function(brrr_leave_out option module missing hint)
  if(${option} STREQUAL "AUTO")
    message(STATUS "brrr: ${module} is left out, not found: ${missing}")
  else()
    message(FATAL_ERROR "brrr: ${option}=${${option}}, but not found: ${missing}\n"
      "${hint}, or set ${option}=OFF.")
  endif()
endfunction()

# brrr_add_module(<name> <source>..): a module in the programs' directory.
function(brrr_add_module name)
  add_library(${name} MODULE ${ARGN})
  target_compile_options(${name} PRIVATE ${brrr_options} ${sanitize})
  target_link_options(${name} PRIVATE ${sanitize})
  target_include_directories(${name} PRIVATE "${PROJECT_SOURCE_DIR}")
  set_target_properties(${name} PROPERTIES
    CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON
    LIBRARY_OUTPUT_DIRECTORY "${CMAKE_RUNTIME_OUTPUT_DIRECTORY}" BUILD_RPATH "$ORIGIN")
  install(TARGETS ${name} LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}")
endfunction()
