# Build type, language level, warnings and sanitizers.
option(BGTQ_BUILD_TESTS "Build the tests" ON)
option(BGTQ_BUILD_BENCH "Build the benchmarks" OFF)
option(BGTQ_BUILD_FUZZ "Build the fuzzers (needs clang)" OFF)
set(BGTQ_SANITIZE "" CACHE STRING "Sanitizers: address,undefined or thread")

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)

find_program(BGTQ_CCACHE ccache)
if(BGTQ_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${BGTQ_CCACHE})
endif()

add_compile_options(-Wall -Wextra -Wno-unused-parameter)
if(BGTQ_SANITIZE)
  add_compile_options(-fsanitize=${BGTQ_SANITIZE} -fno-omit-frame-pointer -g -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${BGTQ_SANITIZE})
endif()
if(BGTQ_BUILD_FUZZ)
  add_compile_options(-fsanitize=fuzzer-no-link)  # coverage of every layer, not of the fuzzers alone
endif()
