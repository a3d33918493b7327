# Files compiled into the program, so that an installed binary needs no data folder: the texts of data/
# (src/engine/bundled_text.h is how they are read) and the server's page (src/http/page.h).
enable_language(ASM)

# bgtq_embed(NAME SYMBOL FILE ...): generated/NAME.S, with the bytes of each file between bgtq_SYMBOL_begin and
# bgtq_SYMBOL_end, and a zero byte after.
function(bgtq_embed name)
  set(pairs ${ARGN})
  set(files "")
  set(EMBEDDED_FILES "")
  while(pairs)
    list(POP_FRONT pairs symbol file)
    list(APPEND files ${file})
    string(APPEND EMBEDDED_FILES "        .globl SYMBOL(bgtq_${symbol}_begin)\n"
                                 "        .globl SYMBOL(bgtq_${symbol}_end)\n"
                                 "SYMBOL(bgtq_${symbol}_begin):\n        .incbin \"${file}\"\n"
                                 "SYMBOL(bgtq_${symbol}_end):\n        .byte 0\n")
  endwhile()
  configure_file(${PROJECT_SOURCE_DIR}/cmake/embedded_files.S.in ${PROJECT_BINARY_DIR}/generated/${name}.S @ONLY)
  set_source_files_properties(${PROJECT_BINARY_DIR}/generated/${name}.S PROPERTIES OBJECT_DEPENDS "${files}")
endfunction()

bgtq_embed(bundled_text
           calibration_text ${PROJECT_SOURCE_DIR}/data/wikitext2_train.txt
           scoring_text ${PROJECT_SOURCE_DIR}/data/wikitext2_test.txt
           haystack_text ${PROJECT_SOURCE_DIR}/data/northanger_abbey.txt)
add_library(bgtq_data STATIC ${PROJECT_BINARY_DIR}/generated/bundled_text.S
                             ${PROJECT_SOURCE_DIR}/src/engine/bundled_text.cc)
target_include_directories(bgtq_data PUBLIC ${PROJECT_SOURCE_DIR})

set(page ${PROJECT_SOURCE_DIR}/src/http/page)
bgtq_embed(page page_index ${page}/index.html page_style ${page}/style.css page_api ${page}/api.js
           page_chat ${page}/chat.js page_panel ${page}/panel.js page_icon ${page}/icon.svg)
add_library(bgtq_page STATIC ${PROJECT_BINARY_DIR}/generated/page.S)
