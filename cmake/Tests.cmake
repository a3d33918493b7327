# One GoogleTest binary a folder of tests/ (its *_test.cc), linked to the layer of the same name.
find_package(GTest REQUIRED)
include(GoogleTest)

function(bgtq_test_folder name)
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/${name}/*_test.cc)
  if(NOT sources OR NOT TARGET bgtq_${name})
    return()
  endif()
  add_executable(${name}_tests ${sources})
  target_link_libraries(${name}_tests PRIVATE bgtq_${name} GTest::gtest_main GTest::gmock)
  target_compile_definitions(${name}_tests PRIVATE BGTQ_TEST_DATA="${PROJECT_SOURCE_DIR}/tests/data"
                                                   BGTQ_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  # Compiled once and run for seconds: optimising the tests' own code (-O3) would cost more than it gives.
  target_compile_options(${name}_tests PRIVATE $<$<CONFIG:Release>:-O1>)
  gtest_discover_tests(${name}_tests DISCOVERY_TIMEOUT 60 PROPERTIES LABELS ${name})
endfunction()

foreach(folder core codec formats text cache backend cpu models engine eval serve http)
  bgtq_test_folder(${folder})
endforeach()

# The CUDA decode attention without a GPU.
add_subdirectory(${PROJECT_SOURCE_DIR}/tests/cuda/emulator)

# Layers only look down, and each header compiles alone (tests/architecture).
find_package(Python3 COMPONENTS Interpreter)
if(Python3_Interpreter_FOUND)
  foreach(check includes headers selftest)
    add_test(NAME Architecture.${check}
             COMMAND Python3::Interpreter ${PROJECT_SOURCE_DIR}/tests/architecture/check_architecture.py ${check}
                     ${PROJECT_SOURCE_DIR} --compiler ${CMAKE_CXX_COMPILER})
    set_tests_properties(Architecture.${check} PROPERTIES LABELS architecture)
  endforeach()
  # The command line as a user meets it.
  add_test(NAME CommandLine COMMAND Python3::Interpreter ${PROJECT_SOURCE_DIR}/tests/cli/cli_test.py
                                    $<TARGET_FILE:blockgtq> ${PROJECT_SOURCE_DIR}/tests/data)
  set_tests_properties(CommandLine PROPERTIES LABELS cli)
  # The server as its clients meet it, over loopback, and its page in a browser. The packages of PyPI that they use are
  # in an environment of scripts/install_deps.sh --dev; without it tests of those are skipped.
  set(http_python $ENV{HOME}/.cache/blockgtq/test-env/bin/python)
  if(NOT EXISTS ${http_python})
    set(http_python Python3::Interpreter)
  endif()
  add_test(NAME HttpServer COMMAND ${http_python} ${PROJECT_SOURCE_DIR}/tests/http/server_test.py
                                   $<TARGET_FILE:blockgtq> ${PROJECT_SOURCE_DIR}/tests/data)
  add_test(NAME HttpPage COMMAND ${http_python} ${PROJECT_SOURCE_DIR}/tests/http/page_test.py
                                 $<TARGET_FILE:blockgtq> ${PROJECT_SOURCE_DIR}/tests/data)
  add_test(NAME HttpFaults COMMAND Python3::Interpreter ${PROJECT_SOURCE_DIR}/tests/http/faults_test.py
                                   $<TARGET_FILE:blockgtq> ${PROJECT_SOURCE_DIR}/tests/data)
  # Many streams, some of which leave: every text is what the request gets alone.
  add_test(NAME HttpLoad COMMAND Python3::Interpreter ${PROJECT_SOURCE_DIR}/bench/server_load.py --short
                                 --binary $<TARGET_FILE:blockgtq>
                                 --model-file ${PROJECT_SOURCE_DIR}/tests/data/models/llama.gguf)
  set_tests_properties(HttpServer HttpPage HttpFaults HttpLoad PROPERTIES LABELS http SKIP_RETURN_CODE 77)
else()
  message(STATUS "No Python 3: the architecture and command-line tests are left out")
endif()
