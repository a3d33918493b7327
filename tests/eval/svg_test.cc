// SVG documents: well-formed whatever they are given, and points where the axes say.
#include "src/eval/svg.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "src/eval/svg_chart.h"

namespace blockgtq {
namespace {

/// "" when every element of the document closes and every text is escaped; otherwise what is wrong.
std::string XmlError(const std::string& xml) {
  std::vector<std::string> open;
  for (size_t i = 0; i < xml.size(); ++i) {
    if (xml[i] == '&') {
      const std::string entity = xml.substr(i, xml.find(';', i) + 1 - i);
      if (entity != "&lt;" && entity != "&gt;" && entity != "&amp;") return "bare & at " + xml.substr(i, 20);
    }
    if (xml[i] != '<') continue;
    const size_t end = xml.find('>', i);
    if (end == std::string::npos) return "open tag";
    const std::string tag = xml.substr(i + 1, end - i - 1);
    if (tag.find('<') != std::string::npos) return "< inside a tag: " + tag;
    int quotes = 0;
    for (char c : tag) quotes += c == '"' ? 1 : 0;
    if (quotes % 2 != 0) return "odd quotes: " + tag;
    if (tag.front() == '/') {
      if (open.empty() || open.back() != tag.substr(1)) return "closes " + tag;
      open.pop_back();
    } else if (tag.back() != '/') {
      open.push_back(tag.substr(0, tag.find(' ')));
    }
    i = end;
  }
  return open.empty() ? "" : "never closed: " + open.back();
}

TEST(Svg, TextIsEscaped) {
  SvgCanvas canvas(100, 50);
  canvas.Text({1, 2}, "a<b>&\"c\"\n|q|²", {.upward = true});
  const std::string svg = canvas.Document();
  EXPECT_EQ(XmlError(svg), "");
  EXPECT_NE(svg.find("a&lt;b&gt;&amp;\"c\" |q|²"), std::string::npos) << svg;
}

TEST(Svg, SeriesDifferInColourAndShape) {
  SvgCanvas canvas(10, 10);
  std::vector<std::string> seen;
  for (size_t s = 0; s < 6; ++s) {
    SvgCanvas one(10, 10);
    one.Marker(s, {5, 5}, 4, "black");
    for (const std::string& other : seen) EXPECT_NE(one.Document(), other);
    seen.push_back(one.Document());
    for (size_t t = 0; t < s; ++t) EXPECT_NE(SvgSeriesColour(s), SvgSeriesColour(t));
  }
}

TEST(SvgPlotArea, MapsLinearAndLogarithmicAxes) {
  const SvgPlotArea area(10, 20, 100, 200, {.label = "x", .smallest = 0.0, .largest = 10.0},
                         {.label = "y", .logarithmic = true, .smallest = 0.01, .largest = 100.0});
  EXPECT_NEAR(area.X(5), 60, 1e-9);
  EXPECT_NEAR(area.Y(100), 20, 1e-9);
  EXPECT_NEAR(area.Y(1), 120, 1e-9);
  EXPECT_NEAR(area.Y(0.01), 220, 1e-9);
  EXPECT_FALSE(area.Shows({1, 0}));
  EXPECT_FALSE(area.Shows({NAN, 1}));
  EXPECT_TRUE(area.Shows({1, 1}));
}

TEST(SvgRange, HoldsTheValuesThatTheAxisCanShow) {
  for (bool logarithmic : {false, true}) {
    for (const std::vector<double>& values : std::vector<std::vector<double>>{
             {}, {3}, {0, 0}, {-2, NAN, 7}, {1e-9, 1e9}, {5, HUGE_VAL}, {0.012, 0.4}}) {
      SvgAxis axis;
      axis.logarithmic = logarithmic;
      const SvgAxis range = SvgRangeFor(axis, values);
      ASSERT_TRUE(range.smallest.has_value() && range.largest.has_value());
      EXPECT_LT(*range.smallest, *range.largest);
      if (logarithmic) {
        EXPECT_GT(*range.smallest, 0);
      }
      for (double v : values) {
        if (!std::isfinite(v) || (logarithmic && v <= 0)) continue;
        EXPECT_LE(*range.smallest, v);
        EXPECT_GE(*range.largest, v);
      }
    }
  }
}

TEST(SvgLineChart, IsWellFormedAndLeavesOutWhatItCannotShow) {
  SvgLineChart chart;
  chart.title = "a < b";
  chart.x = {.label = "x"};
  chart.y = {.label = "y", .logarithmic = true};
  chart.series.push_back(
      {.name = "one", .points = {{1, 0.1}, {2, 0}, {3, NAN}, {4, 10}}, .labels = {"p", "q", "r", "s"}});
  chart.series.push_back({.name = "empty"});
  const std::string svg = DrawSvg(chart);
  EXPECT_EQ(XmlError(svg), "");
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_EQ(svg.find("inf"), std::string::npos);
  for (const char* text : {">p<", ">s<", ">empty<", "a &lt; b"})
    EXPECT_NE(svg.find(text), std::string::npos) << text;
  for (const char* text : {">q<", ">r<"}) EXPECT_EQ(svg.find(text), std::string::npos) << text;
  EXPECT_EQ(XmlError(DrawSvg(SvgLineChart{})), "");
}

TEST(SvgStackedBars, HeightsAreTheShares) {
  SvgStackedBars chart;
  chart.parts = {"a", "b", "never"};
  chart.colours = {"#111111", "#222223", "#333333"};
  chart.bars = {{0.25, 0.75, 0}};
  const std::string svg = DrawSvg(chart);
  EXPECT_EQ(XmlError(svg), "");
  const auto height = [&](const std::string& colour) {
    const size_t at = svg.rfind("height=\"", svg.find("fill=\"" + colour));
    return std::stod(svg.substr(at + 8));
  };
  EXPECT_NEAR(height("#222223") / height("#111111"), 3, 0.01);
  EXPECT_EQ(svg.find("never"), std::string::npos);
  EXPECT_NE(svg.find("a (25%)"), std::string::npos);
}

}  // namespace
}  // namespace blockgtq
