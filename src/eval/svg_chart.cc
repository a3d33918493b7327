// See svg_chart.h.
#include "src/eval/svg_chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace blockgtq {
namespace {

constexpr double kMarkerSize = 8, kTickFont = 12, kLabelFont = 13, kTitleFont = 16;
constexpr SvgStroke kGrid = {"#e4e4e4", 1}, kEdge = {"#555555", 1};

bool CanShow(const SvgAxis& axis, double value) {
  return std::isfinite(value) && (!axis.logarithmic || value > 0);
}

/// The step of about `ticks` ticks over `range`: 1, 2 or 5 times a power of ten.
double RoundStep(double range, int ticks) {
  const double raw = range / ticks, power = std::pow(10.0, std::floor(std::log10(raw)));
  const double lead = raw / power;
  return power * (lead <= 1 ? 1 : lead <= 2 ? 2 : lead <= 5 ? 5 : 10);
}

std::vector<double> Ticks(const SvgAxis& axis) {
  std::vector<double> ticks;
  const double low = *axis.smallest, high = *axis.largest;
  if (axis.logarithmic) {
    const int first = static_cast<int>(std::floor(std::log10(low))),
              last = static_cast<int>(std::ceil(std::log10(high)));
    const bool fine = std::log10(high / low) <= 2.5, coarse = last - first > 8;
    for (int e = first; e <= last; e += coarse ? 2 : 1) {
      for (double lead : {1.0, 2.0, 5.0}) {
        const double value = lead * std::pow(10.0, e);
        if ((lead == 1 || fine) && value >= low * (1 - 1e-9) && value <= high * (1 + 1e-9))
          ticks.push_back(value);
      }
    }
    return ticks;
  }
  const double step = axis.whole_numbers ? std::max(1.0, RoundStep(high - low, 8)) : RoundStep(high - low, 6);
  for (double value = std::ceil(low / step - 1e-9) * step; value <= high + 1e-9 * step; value += step)
    ticks.push_back(std::abs(value) < 1e-9 * step ? 0 : value);
  return ticks;
}

void DrawTitles(SvgCanvas& canvas, double left, const std::string& title, const std::string& subtitle) {
  canvas.Text({left, 26}, title, {.size = kTitleFont, .bold = true});
  canvas.Text({left, 46}, subtitle, {.size = 12, .colour = "#555555"});
}

}  // namespace

SvgAxis SvgRangeFor(SvgAxis axis, const std::vector<double>& values) {
  double low = HUGE_VAL, high = -HUGE_VAL;
  for (double v : values) {
    if (!CanShow(axis, v)) continue;
    low = std::min(low, v);
    high = std::max(high, v);
  }
  if (low > high) {
    low = axis.logarithmic ? 1 : 0;
    high = axis.logarithmic ? 10 : 1;
  }
  if (axis.logarithmic) {  // to the next of 1, 2, 5 times a power of ten, with some room
    const auto round = [](double v, bool up) {
      const double power = std::pow(10.0, std::floor(std::log10(v)));
      const double lead = v / power;
      if (up) return power * (lead <= 1 ? 1 : lead <= 2 ? 2 : lead <= 5 ? 5 : 10);
      return power * (lead >= 5 ? 5 : lead >= 2 ? 2 : 1);
    };
    low = round(low / 1.15, false);
    high = round(high * 1.15, true);
  } else if (!axis.whole_numbers) {
    if (low == high) {
      const double room = low == 0 ? 1 : std::abs(low) * 0.1;
      low -= room;
      high += room;
    }
    const double step = RoundStep(high - low, 6);
    low = std::floor(low / step + 1e-9) * step;
    high = std::ceil(high / step - 1e-9) * step;
  } else if (low == high) {
    low -= 1;
    high += 1;
  }
  if (!axis.smallest.has_value()) axis.smallest = low;
  if (!axis.largest.has_value()) axis.largest = high;
  if (!(*axis.smallest < *axis.largest)) axis.largest = *axis.smallest + 1;
  return axis;
}

SvgPlotArea::SvgPlotArea(double left_in, double top_in, double width_in, double height_in, SvgAxis x,
                         SvgAxis y)
    : left(left_in), top(top_in), width(width_in), height(height_in), x_(std::move(x)), y_(std::move(y)) {}

namespace {

double Fraction(const SvgAxis& axis, double value) {
  const double low = *axis.smallest, high = *axis.largest;
  if (axis.logarithmic) return std::log(value / low) / std::log(high / low);
  return (value - low) / (high - low);
}

std::string TickText(const SvgAxis& axis, double value) {
  // Powers of ten outside 0.001..1000 as such.
  const double power = std::log10(std::abs(value));
  if (axis.logarithmic && (power < -3.001 || power > 3.001) && std::abs(power - std::round(power)) < 1e-9)
    return fmt::format("1e{:.0f}", power);
  return fmt::format("{:g}", value);
}

}  // namespace

double SvgPlotArea::X(double value) const { return left + width * Fraction(x_, value); }
double SvgPlotArea::Y(double value) const { return top + height * (1 - Fraction(y_, value)); }
bool SvgPlotArea::Shows(SvgPoint value) const { return CanShow(x_, value.x) && CanShow(y_, value.y); }

void SvgPlotArea::DrawFrame(SvgCanvas& canvas) const {
  const double bottom = top + height;
  for (double tick : Ticks(x_)) {
    const double at = X(tick);
    canvas.Line({at, top}, {at, bottom}, kGrid);
    canvas.Line({at, bottom}, {at, bottom + 4}, kEdge);
    canvas.Text({at, bottom + 18}, TickText(x_, tick), {.size = kTickFont, .anchor = SvgAnchor::kMiddle});
  }
  for (double tick : Ticks(y_)) {
    const double at = Y(tick);
    canvas.Line({left, at}, {left + width, at}, kGrid);
    canvas.Line({left - 4, at}, {left, at}, kEdge);
    canvas.Text({left - 8, at + 4}, TickText(y_, tick), {.size = kTickFont, .anchor = SvgAnchor::kEnd});
  }
  canvas.Frame(left, top, width, height, kEdge);
  canvas.Text({left + width / 2, bottom + 40}, x_.label, {.size = kLabelFont, .anchor = SvgAnchor::kMiddle});
  canvas.Text({left - 52, top + height / 2}, y_.label,
              {.size = kLabelFont, .anchor = SvgAnchor::kMiddle, .upward = true});
}

double DrawSvgLegend(SvgCanvas* canvas, SvgPoint at, double width, const std::vector<SvgSeries>& series) {
  constexpr double kRow = 20;
  double x = at.x, y = at.y;
  for (size_t i = 0; i < series.size(); ++i) {
    const double needed = 30 + SvgTextWidth(series[i].name, kTickFont) + 18;
    if (x > at.x && x + needed > at.x + width) {
      x = at.x;
      y += kRow;
    }
    if (canvas != nullptr) {
      if (series[i].line)
        canvas->Line({x, y + 8}, {x + 24, y + 8}, {.colour = SvgSeriesColour(i), .width = 2});
      if (series[i].markers) canvas->Marker(i, {x + 12, y + 8}, kMarkerSize, SvgSeriesColour(i));
      canvas->Text({x + 30, y + 12}, series[i].name, {.size = kTickFont});
    }
    x += needed;
  }
  return y + kRow - at.y;
}

std::string DrawSvg(const SvgLineChart& chart) {
  constexpr double kLeft = 76, kTop = 62, kRight = 24;
  const double plot_width = chart.width - kLeft - kRight;
  const double legend = DrawSvgLegend(nullptr, {kLeft, 0}, plot_width, chart.series);
  const double plot_height = std::max(80.0, chart.height - kTop - 58 - legend - 8);
  std::vector<double> xs, ys;
  for (const SvgSeries& series : chart.series) {
    for (const SvgPoint& p : series.points) {
      if (!CanShow(chart.x, p.x) || !CanShow(chart.y, p.y)) continue;
      xs.push_back(p.x);
      ys.push_back(p.y);
    }
  }
  const SvgPlotArea area(kLeft, kTop, plot_width, plot_height, SvgRangeFor(chart.x, xs),
                         SvgRangeFor(chart.y, ys));
  SvgCanvas canvas(chart.width, kTop + plot_height + 58 + legend + 8);
  DrawTitles(canvas, kLeft, chart.title, chart.subtitle);
  area.DrawFrame(canvas);
  for (size_t i = 0; i < chart.series.size(); ++i) {
    const SvgSeries& series = chart.series[i];
    std::vector<SvgPoint> shown;
    for (size_t p = 0; p < series.points.size(); ++p) {
      if (!area.Shows(series.points[p])) continue;
      shown.push_back({area.X(series.points[p].x), area.Y(series.points[p].y)});
      if (p < series.labels.size()) {
        const bool right = shown.back().x > kLeft + plot_width - 40;
        const bool below = shown.back().y < kTop + 18;
        canvas.Text({shown.back().x + (right ? -8 : 8), shown.back().y + (below ? 16 : -6)}, series.labels[p],
                    {.size = 11,
                     .anchor = right ? SvgAnchor::kEnd : SvgAnchor::kStart,
                     .colour = SvgSeriesColour(i)});
      }
    }
    if (series.line && shown.size() > 1) canvas.Polyline(shown, {.colour = SvgSeriesColour(i), .width = 2});
    if (series.markers)
      for (const SvgPoint& p : shown) canvas.Marker(i, p, kMarkerSize, SvgSeriesColour(i));
  }
  DrawSvgLegend(&canvas, {kLeft, kTop + plot_height + 54}, plot_width, chart.series);
  return canvas.Document();
}

std::string DrawSvg(const SvgStackedBars& chart) {
  constexpr double kLeft = 76, kTop = 62, kRight = 24, kLegend = 34;
  const double plot_width = chart.width - kLeft - kRight, plot_height = chart.height - kTop - 58 - kLegend;
  const double count = static_cast<double>(std::max<size_t>(chart.bars.size(), 1));
  const SvgPlotArea area(
      kLeft, kTop, plot_width, plot_height,
      {.label = chart.x_label, .smallest = -0.5, .largest = count - 0.5, .whole_numbers = true},
      {.label = chart.y_label, .smallest = 0.0, .largest = 1.0});
  SvgCanvas canvas(chart.width, chart.height);
  DrawTitles(canvas, kLeft, chart.title, chart.subtitle);
  area.DrawFrame(canvas);
  std::vector<double> total(chart.parts.size(), 0);
  const double bar_width = plot_width / count;
  const double gap = std::min(2.0, bar_width / 5);
  for (size_t b = 0; b < chart.bars.size(); ++b) {
    double below = 0;
    for (size_t p = 0; p < chart.parts.size() && p < chart.bars[b].size(); ++p) {
      const double share = chart.bars[b][p];
      if (!(share > 0)) continue;
      total[p] += share;
      const double top = area.Y(std::min(1.0, below + share));
      canvas.Rect(kLeft + static_cast<double>(b) * bar_width + gap / 2, top, bar_width - gap,
                  area.Y(below) - top, chart.colours[p % chart.colours.size()]);
      below = std::min(1.0, below + share);
    }
  }
  canvas.Frame(kLeft, kTop, plot_width, plot_height, kEdge);
  double x = kLeft;
  for (size_t p = 0; p < chart.parts.size(); ++p) {
    if (total[p] == 0) continue;
    canvas.Rect(x, chart.height - kLegend + 8, 14, 14, chart.colours[p % chart.colours.size()]);
    const std::string text = fmt::format("{} ({:.0f}%)", chart.parts[p], 100 * total[p] / count);
    canvas.Text({x + 19, chart.height - kLegend + 19}, text, {.size = kTickFont});
    x += 19 + SvgTextWidth(text, kTickFont) + 12;
  }
  return canvas.Document();
}

}  // namespace blockgtq
