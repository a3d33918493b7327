// The web page of the server: its files, which cmake/EmbedText.cmake puts into the program's read-only data.
#pragma once

#include <string_view>

namespace blockgtq::http {

struct PageFile {
  std::string_view path;  // of the URL
  std::string_view content_type;
  std::string_view content;
};

/// The file at a path of the page, "/" and those under "/page/"; null: none.
const PageFile* FindPageFile(std::string_view path);

}  // namespace blockgtq::http
