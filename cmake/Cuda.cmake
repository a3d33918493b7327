# The CUDA layer: packed decode attention on GPUs. Optional: without nvcc everything else builds the same.
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

# Fused attention comes from cuDNN through its header-only frontend; the library itself is loaded at run time.
find_path(CUDNN_INCLUDE_DIR cudnn.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
find_path(CUDNN_FRONTEND_INCLUDE_DIR cudnn_frontend.h HINTS $ENV{HOME}/.cache/blockgtq/cudnn-frontend/include)
if(NOT CUDNN_INCLUDE_DIR OR NOT CUDNN_FRONTEND_INCLUDE_DIR)
  message(STATUS "cuDNN 9 (cudnn.h) or cudnn-frontend (cudnn_frontend.h) is missing: the GPU kernels are left out. "
                 "scripts/install_deps.sh fetches cudnn-frontend; cuDNN comes with its own installer. "
                 "Elsewhere: -DCUDNN_INCLUDE_DIR=..., -DCUDNN_FRONTEND_INCLUDE_DIR=...")
  return()
endif()

# One source for sm_90a (Hopper: bulk copies, clusters, programmatic dependent launch) and for sm_80, whose code runs on
# compute capability 8.0 to 8.9. Each takes as long to compile, so by default there is one: the machine's own.
set(own_architecture 90a-real)
if(CMAKE_CUDA_ARCHITECTURES_NATIVE MATCHES "^8")
  set(own_architecture 80-real)
endif()
set(BGTQ_CUDA_ARCHITECTURES ${own_architecture} CACHE STRING
    "GPUs to build kernels for: 90a-real, 80-real, or \"80-real;90a-real\"; 80-on-90 runs the code of sm_80 on Hopper")

# nvcc does not know the warnings of cmake/Options.cmake.
function(bgtq_cuda_settings target)
  set_target_properties(${target} PROPERTIES CUDA_ARCHITECTURES "${BGTQ_CUDA_ARCHITECTURES}" CUDA_STANDARD 20
                                             COMPILE_OPTIONS "")
  if(BGTQ_CUDA_ARCHITECTURES STREQUAL "80-on-90")
    set_target_properties(${target} PROPERTIES CUDA_ARCHITECTURES OFF)
    target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:SHELL:-gencode arch=compute_80,code=sm_90>")
  endif()
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr>
                                           $<$<COMPILE_LANGUAGE:CXX>:-Wall$<SEMICOLON>-Wextra>)
endfunction()

file(GLOB cuda_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/cuda/*.cc ${PROJECT_SOURCE_DIR}/src/cuda/*.cu)
add_library(bgtq_cuda STATIC ${cuda_sources})
target_link_libraries(bgtq_cuda PUBLIC bgtq_backend CUDA::cudart_static ${CMAKE_DL_LIBS})
target_include_directories(bgtq_cuda SYSTEM PRIVATE ${CUDNN_FRONTEND_INCLUDE_DIR} ${CUDNN_INCLUDE_DIR})
bgtq_cuda_settings(bgtq_cuda)

# Programs that run on machines without the project's libraries: plain executables, found by scripts/gpu_test.sh.
if(BGTQ_BUILD_TESTS)
  file(GLOB test_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/cuda/*_test.cc)
  add_library(cuda_test_kernels OBJECT ${PROJECT_SOURCE_DIR}/tests/cuda/late_rows.cu)
  target_link_libraries(cuda_test_kernels PRIVATE bgtq_backend)
  bgtq_cuda_settings(cuda_test_kernels)
  add_custom_target(cuda_tests)
  foreach(source ${test_sources})
    get_filename_component(name ${source} NAME_WE)
    add_executable(cuda_${name} ${source})
    target_link_libraries(cuda_${name} PRIVATE cuda_test_kernels bgtq_cuda)
    bgtq_cuda_settings(cuda_${name})
    add_test(NAME Cuda.${name} COMMAND cuda_${name})
    set_tests_properties(Cuda.${name} PROPERTIES LABELS cuda SKIP_RETURN_CODE 77)
    add_dependencies(cuda_tests cuda_${name})
  endforeach()
  target_link_libraries(cuda_windowed_attention_test PRIVATE bgtq_cpu)  # which it compares with
  target_link_libraries(cuda_latent_model_test PRIVATE bgtq_engine)  # a model, on both backends
  target_link_libraries(cuda_simulated_caches_test PRIVATE bgtq_eval)
  target_compile_definitions(cuda_latent_model_test PRIVATE BGTQ_TEST_DATA="${PROJECT_SOURCE_DIR}/tests/data")
endif()
if(BGTQ_BUILD_BENCH)
  add_executable(blockgtq-bench-attention ${PROJECT_SOURCE_DIR}/bench/attention_gpu_bench.cu)
  target_link_libraries(blockgtq-bench-attention PRIVATE bgtq_cuda)
  bgtq_cuda_settings(blockgtq-bench-attention)
  add_executable(matmul_gpu_bench ${PROJECT_SOURCE_DIR}/bench/matmul_gpu_bench.cu)
  target_link_libraries(matmul_gpu_bench PRIVATE bgtq_cuda)
  bgtq_cuda_settings(matmul_gpu_bench)
  add_executable(latent_gpu_bench ${PROJECT_SOURCE_DIR}/bench/latent_gpu_bench.cu)
  target_link_libraries(latent_gpu_bench PRIVATE bgtq_cuda)
  bgtq_cuda_settings(latent_gpu_bench)
endif()
