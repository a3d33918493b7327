// Charts as SVG documents: lines and points over linear or logarithmic axes, and stacked bars.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/eval/svg.h"

namespace blockgtq {

struct SvgAxis {
  std::string label{};                          // with its unit
  bool logarithmic = false;                     // base 10
  std::optional<double> smallest{}, largest{};  // the range; otherwise that of the data, to round numbers
  bool whole_numbers = false;                   // ticks at whole numbers only, the range as it is
};

/// Pixels of a chart's inner frame and the scales that map data to it.
class SvgPlotArea {
 public:
  /// x, y: axes whose ranges are set (smallest < largest; positive where logarithmic).
  SvgPlotArea(double left, double top, double width, double height, SvgAxis x, SvgAxis y);
  double X(double value) const;
  double Y(double value) const;
  /// True when the value is finite and its axis can show it.
  bool Shows(SvgPoint value) const;
  /// White inside, light grid lines at the ticks, tick and axis labels, a frame.
  void DrawFrame(SvgCanvas& canvas) const;

  const double left, top, width, height;

 private:
  SvgAxis x_, y_;
};

/// `axis` with a range: its own bounds, else round numbers around `values` (those that it can show; without
/// any, 0..1, or 1..10 where logarithmic).
SvgAxis SvgRangeFor(SvgAxis axis, const std::vector<double>& values);

struct SvgSeries {
  std::string name;
  std::vector<SvgPoint> points{};     // not finite, or not positive on a logarithmic axis: left out
  std::vector<std::string> labels{};  // beside the points; empty: none
  bool line = true;
  bool markers = true;
};

struct SvgLineChart {
  std::string title, subtitle;
  SvgAxis x, y;
  std::vector<SvgSeries> series;
  double width = 720, height = 430;
};
std::string DrawSvg(const SvgLineChart& chart);

/// The legend of series 0, 1, ... in their colours and shapes, in rows of at most `width` pixels from (x, y)
/// down; returns the height it takes. canvas null: only measures.
double DrawSvgLegend(SvgCanvas* canvas, SvgPoint at, double width, const std::vector<SvgSeries>& series);

struct SvgStackedBars {
  std::string title, subtitle, x_label, y_label;
  std::vector<std::string> parts;         // legend; a part that every bar has at 0 is not drawn
  std::vector<std::string_view> colours;  // [parts]
  std::vector<std::vector<double>> bars;  // [bars][parts] shares, each bar's sum at most 1; bar i is at x = i
  double width = 720, height = 400;
};
std::string DrawSvg(const SvgStackedBars& chart);

}  // namespace blockgtq
