// See page.h.
#include "src/http/page.h"

#include <algorithm>
#include <array>

#define BGTQ_PAGE_FILE(name)               \
  extern const char bgtq_##name##_begin[]; \
  extern const char bgtq_##name##_end[];
extern "C" {
BGTQ_PAGE_FILE(page_index)
BGTQ_PAGE_FILE(page_style)
BGTQ_PAGE_FILE(page_api)
BGTQ_PAGE_FILE(page_chat)
BGTQ_PAGE_FILE(page_panel)
BGTQ_PAGE_FILE(page_icon)
}
#undef BGTQ_PAGE_FILE

namespace blockgtq::http {

const PageFile* FindPageFile(std::string_view path) {
  constexpr const char* kScript = "text/javascript; charset=utf-8";
  static const std::array<PageFile, 6> kFiles = {{
      {"/", "text/html; charset=utf-8", {bgtq_page_index_begin, bgtq_page_index_end}},
      {"/page/style.css", "text/css; charset=utf-8", {bgtq_page_style_begin, bgtq_page_style_end}},
      {"/page/api.js", kScript, {bgtq_page_api_begin, bgtq_page_api_end}},
      {"/page/chat.js", kScript, {bgtq_page_chat_begin, bgtq_page_chat_end}},
      {"/page/panel.js", kScript, {bgtq_page_panel_begin, bgtq_page_panel_end}},
      {"/page/icon.svg", "image/svg+xml", {bgtq_page_icon_begin, bgtq_page_icon_end}},
  }};
  const auto found = std::ranges::find(kFiles, path, &PageFile::path);
  return found == kFiles.end() ? nullptr : &*found;
}

}  // namespace blockgtq::http
