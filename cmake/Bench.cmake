# Benchmarks of bench/: one program a *_bench.cc.
find_package(benchmark REQUIRED)
file(GLOB bench_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/bench/*_bench.cc)
foreach(source ${bench_sources})
  get_filename_component(name ${source} NAME_WE)
  add_executable(${name} ${source})
  target_link_libraries(${name} PRIVATE bgtq_cpu benchmark::benchmark)
endforeach()

# The matrix products are measured against OpenBLAS where it is installed; nothing else links it.
pkg_check_modules(OPENBLAS QUIET IMPORTED_TARGET openblas)
if(TARGET matmul_cpu_bench AND OPENBLAS_FOUND)
  target_compile_definitions(matmul_cpu_bench PRIVATE BGTQ_HAVE_OPENBLAS=1)
  target_link_libraries(matmul_cpu_bench PRIVATE PkgConfig::OPENBLAS)
endif()
