# The command-line programs of apps/.
file(GLOB cli_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/apps/cli/*.cc)
if(cli_sources)
  add_executable(blockgtq ${cli_sources})
  target_link_libraries(blockgtq PRIVATE bgtq_eval bgtq_http CLI11::CLI11)
  target_compile_definitions(blockgtq PRIVATE BGTQ_VERSION="${PROJECT_VERSION}")
  install(TARGETS blockgtq RUNTIME)
endif()
