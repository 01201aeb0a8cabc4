# Installs BUILD_DIR into a fresh prefix, builds the project in this folder against it, runs it.
set(work "${BUILD_DIR}/consumer")
set(prefix "${work}/a, prefix")  # Characters that linkers and shells would split.
file(REMOVE_RECURSE "${work}")
set(ENV{CMAKE_PREFIX_PATH} "${PREFIXES}:$ENV{CMAKE_PREFIX_PATH}")
function(run)
  execute_process(COMMAND ${ARGV} COMMAND_ECHO STDOUT COMMAND_ERROR_IS_FATAL ANY)
endfunction()
run("${CMAKE_COMMAND}" --install "${BUILD_DIR}" --config "${CONFIG}" --prefix "${prefix}")
string(STRIP "${FLAGS}" FLAGS)
run("${CMAKE_COMMAND}" -S "${CMAKE_CURRENT_LIST_DIR}" -B "${work}/build" -G "${GENERATOR}"
  "-DCMAKE_CXX_COMPILER=${COMPILER}" "-DCMAKE_CXX_FLAGS=${FLAGS}" "-DCMAKE_BUILD_TYPE=${CONFIG}"
  "-Dbrrr_ROOT=${prefix}")
run("${CMAKE_COMMAND}" --build "${work}/build" --config "${CONFIG}")
run("${work}/build/consumer")
# The installed module is found. (Not under a sanitizer, whose dlopen ignores the program's rpath.)
if(MPIEXEC AND NOT FLAGS MATCHES "-fsanitize")
  run(bash "${CMAKE_CURRENT_LIST_DIR}/../dist/launch.sh" "${MPIEXEC}" 2 "${work}/build/consumer")
endif()
run("${work}/build/rows")
run("${work}/build/row_corners")
run("${CMAKE_COMMAND}" -S "${CMAKE_CURRENT_LIST_DIR}/parent" -B "${work}/parent" -G "${GENERATOR}"
  "-DCMAKE_CXX_COMPILER=${COMPILER}" "-DBRRR_SOURCE=${CMAKE_CURRENT_LIST_DIR}/../..")
