# Writes OUTPUT, C++ string literals holding the text of INPUTS (separated by '|').
# Run as: cmake -DINPUTS=a.h|b.h -DOUTPUT=prelude.inc -P embed.cmake
string(REPLACE "|" ";" inputs "${INPUTS}")
set(literals "")
foreach(input IN LISTS inputs)
  file(READ "${input}" text)
  # The generated unit is header-free, and `#pragma once` in a main file is a warning.
  string(REGEX REPLACE "(^|\n)[ \t]*#[ \t]*include[^\n]*" "\\1" text "${text}")
  string(REGEX REPLACE "(^|\n)[ \t]*#[ \t]*pragma[ \t]+once[^\n]*" "\\1" text "${text}")
  if(text MATCHES "\\)~brrr\"")
    message(FATAL_ERROR "${input}: contains the raw string delimiter of the embedded prelude")
  endif()
  string(APPEND literals "R\"~brrr(${text})~brrr\"\n")
endforeach()
file(WRITE "${OUTPUT}" "${literals}")
