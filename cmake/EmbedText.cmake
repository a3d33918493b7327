# The texts of data/ compiled into the program, so that an installed binary needs no data folder.
# src/engine/bundled_text.h is how they are read.
enable_language(ASM)

set(bundled_calibration ${PROJECT_SOURCE_DIR}/data/wikitext2_train.txt)
set(bundled_scoring ${PROJECT_SOURCE_DIR}/data/wikitext2_test.txt)
set(bundled_haystack ${PROJECT_SOURCE_DIR}/data/northanger_abbey.txt)
configure_file(${CMAKE_CURRENT_LIST_DIR}/bundled_text.S.in ${PROJECT_BINARY_DIR}/generated/bundled_text.S @ONLY)
set_source_files_properties(${PROJECT_BINARY_DIR}/generated/bundled_text.S
                            PROPERTIES OBJECT_DEPENDS "${bundled_calibration};${bundled_scoring};${bundled_haystack}")

add_library(bgtq_data STATIC ${PROJECT_BINARY_DIR}/generated/bundled_text.S
                             ${PROJECT_SOURCE_DIR}/src/engine/bundled_text.cc)
target_include_directories(bgtq_data PUBLIC ${PROJECT_SOURCE_DIR})
