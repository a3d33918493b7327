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
  gtest_discover_tests(${name}_tests DISCOVERY_TIMEOUT 60 PROPERTIES LABELS ${name})
endfunction()

foreach(folder core codec formats text cache backend cpu models engine eval)
  bgtq_test_folder(${folder})
endforeach()
