// Drawing on an SVG page: shapes, text, and the colours that all plots share. Coordinates are pixels from the
// top left.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace blockgtq {

struct SvgPoint {
  double x = 0, y = 0;
};

enum class SvgAnchor { kStart, kMiddle, kEnd };

struct SvgTextStyle {
  double size = 12;
  SvgAnchor anchor = SvgAnchor::kStart;
  bool bold = false;
  bool upward = false;  // turned to read from bottom to top
  std::string_view colour = "#222222";
};

struct SvgStroke {
  std::string_view colour = "#222222";
  double width = 1;
  std::string_view dashes = "";  // SVG's stroke-dasharray; empty: solid
};

/// A white page with a sans-serif font. Text is UTF-8 and is escaped; control characters become spaces.
class SvgCanvas {
 public:
  SvgCanvas(double width, double height) : width_(width), height_(height) {}

  void Rect(double x, double y, double width, double height, std::string_view fill);
  void Frame(double x, double y, double width, double height, const SvgStroke& stroke);
  void Line(SvgPoint from, SvgPoint to, const SvgStroke& stroke);
  void Polyline(std::span<const SvgPoint> points, const SvgStroke& stroke);
  /// A filled sign with a thin white edge; `shape` counts through circle, square, triangle, diamond, triangle
  /// down and cross, so that series differ without colour too.
  void Marker(size_t shape, SvgPoint centre, double size, std::string_view fill);
  void Text(SvgPoint at, std::string_view text, const SvgTextStyle& style = {});
  /// The whole document.
  std::string Document() const;

 private:
  double width_, height_;
  std::string body_;
};

/// Pixels that `text` takes, about: for legends and margins.
double SvgTextWidth(std::string_view text, double size);

/// Colour of series i: Okabe and Ito's palette, which people with any colour vision tell apart. Repeats after
/// seven.
std::string_view SvgSeriesColour(size_t series);
/// Colour of a code width 1..8, dark (few bits) to light: the viridis scale, readable without colour vision.
/// Grey outside.
std::string_view SvgWidthColour(int width);

}  // namespace blockgtq
