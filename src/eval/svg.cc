// See svg.h.
#include "src/eval/svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <functional>
#include <iterator>

namespace blockgtq {
namespace {

std::string Escaped(std::string_view text) {
  std::string out;
  for (char c : text) {
    switch (c) {
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '&':
        out += "&amp;";
        break;
      default:
        out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return out;
}

std::string StrokeAttributes(const SvgStroke& stroke) {
  std::string out = fmt::format("stroke=\"{}\" stroke-width=\"{:.2f}\"", stroke.colour, stroke.width);
  if (!stroke.dashes.empty()) out += fmt::format(" stroke-dasharray=\"{}\"", stroke.dashes);
  return out;
}

const char* AnchorName(SvgAnchor anchor) {
  return anchor == SvgAnchor::kStart ? "start" : anchor == SvgAnchor::kMiddle ? "middle" : "end";
}

// Corners of the marker shapes around (0, 0), for a half-size of 1; the circle (shape 0) has none.
std::span<const SvgPoint> MarkerCorners(size_t shape) {
  static constexpr std::array<SvgPoint, 4> kSquare = {{{-0.9, -0.9}, {0.9, -0.9}, {0.9, 0.9}, {-0.9, 0.9}}};
  static constexpr std::array<SvgPoint, 3> kUp = {{{0, -1.15}, {1.1, 0.85}, {-1.1, 0.85}}};
  static constexpr std::array<SvgPoint, 4> kDiamond = {{{0, -1.25}, {1.05, 0}, {0, 1.25}, {-1.05, 0}}};
  static constexpr std::array<SvgPoint, 3> kDown = {{{0, 1.15}, {1.1, -0.85}, {-1.1, -0.85}}};
  static constexpr std::array<SvgPoint, 12> kCross = {{{-0.4, -1.1},
                                                       {0.4, -1.1},
                                                       {0.4, -0.4},
                                                       {1.1, -0.4},
                                                       {1.1, 0.4},
                                                       {0.4, 0.4},
                                                       {0.4, 1.1},
                                                       {-0.4, 1.1},
                                                       {-0.4, 0.4},
                                                       {-1.1, 0.4},
                                                       {-1.1, -0.4},
                                                       {-0.4, -0.4}}};
  switch (shape % 6) {
    case 0:
      return {};
    case 1:
      return kSquare;
    case 2:
      return kUp;
    case 3:
      return kDiamond;
    case 4:
      return kDown;
    default:
      return kCross;
  }
}

}  // namespace

void SvgCanvas::Rect(double x, double y, double width, double height, std::string_view fill) {
  body_ += fmt::format("<rect x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\" fill=\"{}\"/>\n",
                       x, y, width, height, fill);
}

void SvgCanvas::Frame(double x, double y, double width, double height, const SvgStroke& stroke) {
  body_ +=
      fmt::format("<rect x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\" fill=\"none\" {}/>\n",
                  x, y, width, height, StrokeAttributes(stroke));
}

void SvgCanvas::Line(SvgPoint from, SvgPoint to, const SvgStroke& stroke) {
  body_ += fmt::format("<line x1=\"{:.2f}\" y1=\"{:.2f}\" x2=\"{:.2f}\" y2=\"{:.2f}\" {}/>\n", from.x, from.y,
                       to.x, to.y, StrokeAttributes(stroke));
}

void SvgCanvas::Polyline(std::span<const SvgPoint> points, const SvgStroke& stroke) {
  body_ += "<polyline points=\"";
  for (const SvgPoint& p : points) fmt::format_to(std::back_inserter(body_), "{:.2f},{:.2f} ", p.x, p.y);
  body_ += fmt::format("\" fill=\"none\" stroke-linejoin=\"round\" {}/>\n", StrokeAttributes(stroke));
}

void SvgCanvas::Marker(size_t shape, SvgPoint centre, double size, std::string_view fill) {
  const std::span<const SvgPoint> corners = MarkerCorners(shape);
  const double half = size / 2;
  if (corners.empty()) {
    body_ += fmt::format("<circle cx=\"{:.2f}\" cy=\"{:.2f}\" r=\"{:.2f}\" fill=\"{}\" ", centre.x, centre.y,
                         half, fill);
  } else {
    body_ += "<polygon points=\"";
    for (const SvgPoint& p : corners)
      fmt::format_to(std::back_inserter(body_), "{:.2f},{:.2f} ", centre.x + half * p.x,
                     centre.y + half * p.y);
    body_ += fmt::format("\" fill=\"{}\" ", fill);
  }
  body_ += "stroke=\"white\" stroke-width=\"0.7\"/>\n";
}

void SvgCanvas::Text(SvgPoint at, std::string_view text, const SvgTextStyle& style) {
  std::string turn;
  if (style.upward) turn = fmt::format(" transform=\"rotate(-90 {:.1f} {:.1f})\"", at.x, at.y);
  body_ += fmt::format(
      "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" font-size=\"{:g}\"{} fill=\"{}\"{}>{}</text>\n",
      at.x, at.y, AnchorName(style.anchor), style.size, style.bold ? " font-weight=\"bold\"" : "",
      style.colour, turn, Escaped(text));
}

std::string SvgCanvas::Document() const {
  return fmt::format(
             "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" "
             "height=\"{1:.0f}\" font-family=\"Helvetica, Arial, 'DejaVu Sans', sans-serif\">\n"
             "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
             width_, height_) +
         body_ + "</svg>\n";
}

double SvgTextWidth(std::string_view text, double size) {
  const auto continues = [](char c) { return (static_cast<unsigned char>(c) & 0xc0) == 0x80; };  // UTF-8
  return 0.58 * size * static_cast<double>(std::count_if(text.begin(), text.end(), std::not_fn(continues)));
}

std::string_view SvgSeriesColour(size_t series) {
  static constexpr std::array<std::string_view, 7> kColours = {"#0072B2", "#D55E00", "#009E73", "#CC79A7",
                                                               "#E69F00", "#56B4E9", "#444444"};
  return kColours[series % kColours.size()];
}

std::string_view SvgWidthColour(int width) {
  static constexpr std::array<std::string_view, 9> kColours = {
      "#b0b0b0", "#440154", "#46327e", "#365c8d", "#277f8e", "#1fa187", "#4ac16d", "#a0da39", "#fde725"};
  return width >= 1 && width <= 8 ? kColours[static_cast<size_t>(width)] : kColours[0];
}

}  // namespace blockgtq
