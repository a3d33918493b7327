# The CUDA layer: packed decode attention for Hopper. Optional: without nvcc everything else builds the same.
if(BGTQ_SANITIZE)
  message(STATUS "Sanitizers do not reach GPU code: the GPU kernels are left out")
  return()
endif()
include(CheckLanguage)
check_language(CUDA)
if(NOT CMAKE_CUDA_COMPILER)
  message(STATUS "No CUDA compiler: the GPU kernels are left out")
  return()
endif()
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know that nvcc 13 has it
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
endif()

# nvcc does not know the warnings of cmake/Options.cmake, and the kernels need sm_90a.
function(bgtq_cuda_settings target)
  set_target_properties(${target} PROPERTIES CUDA_ARCHITECTURES 90a CUDA_STANDARD 20 COMPILE_OPTIONS "")
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr>
                                           $<$<COMPILE_LANGUAGE:CXX>:-Wall$<SEMICOLON>-Wextra>)
endfunction()

file(GLOB cuda_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/cuda/*.cc ${PROJECT_SOURCE_DIR}/src/cuda/*.cu)
add_library(bgtq_cuda STATIC ${cuda_sources})
target_link_libraries(bgtq_cuda PUBLIC bgtq_backend CUDA::cudart_static)
bgtq_cuda_settings(bgtq_cuda)

# Programs that run on machines without the project's libraries: plain executables, found by scripts/gpu_test.sh.
if(BGTQ_BUILD_TESTS)
  add_executable(decode_attention_test ${PROJECT_SOURCE_DIR}/tests/cuda/decode_attention_test.cc)
  target_link_libraries(decode_attention_test PRIVATE bgtq_cuda)
  bgtq_cuda_settings(decode_attention_test)
  add_test(NAME Cuda.DecodeAttention COMMAND decode_attention_test)
  set_tests_properties(Cuda.DecodeAttention PROPERTIES LABELS cuda SKIP_RETURN_CODE 77)
endif()
if(BGTQ_BUILD_BENCH)
  add_executable(attention_gpu_bench ${PROJECT_SOURCE_DIR}/bench/attention_gpu_bench.cu)
  target_link_libraries(attention_gpu_bench PRIVATE bgtq_cuda)
  bgtq_cuda_settings(attention_gpu_bench)
endif()
