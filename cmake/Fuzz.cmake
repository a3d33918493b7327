# libFuzzer programs of fuzz/: one a *_fuzzer.cc. Needs clang; scripts/fuzz.sh configures, builds and runs them.
if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  message(FATAL_ERROR "BGTQ_BUILD_FUZZ needs clang: configure with -DCMAKE_CXX_COMPILER=clang++, or run scripts/fuzz.sh")
endif()
file(GLOB fuzz_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/fuzz/*_fuzzer.cc)
foreach(source ${fuzz_sources})
  get_filename_component(name ${source} NAME_WE)
  add_executable(${name} ${source})
  target_link_libraries(${name} PRIVATE bgtq_cache bgtq_text -fsanitize=fuzzer)
endforeach()
# The parsers alone: the layers between text and http take minutes to instrument and are not reached.
target_sources(http_request_fuzzer PRIVATE ${PROJECT_SOURCE_DIR}/src/http/json_request.cc
                                           ${PROJECT_SOURCE_DIR}/src/http/host_rule.cc
                                           ${PROJECT_SOURCE_DIR}/src/http/chat_request.cc
                                           ${PROJECT_SOURCE_DIR}/src/http/request_fields.cc
                                           ${PROJECT_SOURCE_DIR}/src/http/tool_call_parser.cc
                                           ${PROJECT_SOURCE_DIR}/src/engine/sampler.cc)
target_sources(json_machine_fuzzer PRIVATE ${PROJECT_SOURCE_DIR}/src/engine/json_machine.cc)
# Writes the seeds of session_fuzzer (fuzz/corpus/session), by hand when their format changes.
add_executable(make_session_seeds EXCLUDE_FROM_ALL ${PROJECT_SOURCE_DIR}/fuzz/make_session_seeds.cc)
target_link_libraries(make_session_seeds PRIVATE bgtq_cache)
