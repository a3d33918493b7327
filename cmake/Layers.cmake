# One static library a folder of src/. A layer links only to the layers named here, all of them below it;
# tests/architecture checks the same rule on the includes.
function(bgtq_layer name)
  cmake_parse_arguments(ARG "" "" "DEPENDS" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${name}/*.cc ${PROJECT_SOURCE_DIR}/src/${name}/*/*.cc)
  list(FILTER sources EXCLUDE REGEX "/src/engine/bundled_text.cc$")  # bgtq_data has it
  if(NOT sources)
    return()
  endif()
  add_library(bgtq_${name} STATIC ${sources})
  target_include_directories(bgtq_${name} PUBLIC ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR})
  foreach(dep ${ARG_DEPENDS})
    if(TARGET ${dep})
      target_link_libraries(bgtq_${name} PUBLIC ${dep})
    elseif(TARGET bgtq_${dep})
      target_link_libraries(bgtq_${name} PUBLIC bgtq_${dep})
    endif()
  endforeach()
endfunction()

bgtq_layer(core DEPENDS fmt::fmt Threads::Threads PkgConfig::XXHASH)
bgtq_layer(codec DEPENDS core)
bgtq_layer(formats DEPENDS codec nlohmann_json::nlohmann_json)
bgtq_layer(text DEPENDS formats PkgConfig::PCRE2)
bgtq_layer(cache DEPENDS formats codec)
bgtq_layer(backend DEPENDS cache)
bgtq_layer(cpu DEPENDS backend cache PkgConfig::HWY)
bgtq_layer(models DEPENDS backend formats)
include(EmbedText)  # bgtq_data, bgtq_page
include(Cuda)  # bgtq_cuda, where there is nvcc
bgtq_layer(engine DEPENDS models cpu cuda text bgtq_data)
if(TARGET bgtq_cuda)
  target_compile_definitions(bgtq_engine PRIVATE BGTQ_HAVE_CUDA=1)
endif()
bgtq_layer(eval DEPENDS engine)
bgtq_layer(serve DEPENDS engine)
bgtq_layer(http DEPENDS serve bgtq_page Boost::headers nlohmann_json::nlohmann_json)

# Sanitizers and kernels that are compiled for several targets: checking every operation takes minutes a file, so those
# are checked for addresses only; the two product kernels, with a template for each weight type, take more than ten
# minutes even so and stay as they are (their callers, which own every buffer, are instrumented).
if(BGTQ_SANITIZE)
  set(kernels attention_codes attention_codes_queries attention_exact encode elementwise)
  list(TRANSFORM kernels PREPEND ${PROJECT_SOURCE_DIR}/src/cpu/)
  list(TRANSFORM kernels APPEND .cc)
  if(BGTQ_SANITIZE MATCHES "undefined")
    set_source_files_properties(${kernels} PROPERTIES COMPILE_OPTIONS -fno-sanitize=undefined)
  endif()
  set_source_files_properties(${PROJECT_SOURCE_DIR}/src/cpu/matmul_int8.cc ${PROJECT_SOURCE_DIR}/src/cpu/matmul_float.cc
                              PROPERTIES COMPILE_OPTIONS -fno-sanitize=all)
endif()
