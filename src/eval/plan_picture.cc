// See plan_picture.h.
#include "src/eval/plan_picture.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace blockgtq {
namespace {

// One colour a width 1..8, dark (few bits) to light (many): the viridis scale, readable without colour
// vision.
constexpr std::array<const char*, 9> kColours = {"",        "#440154", "#46327e", "#365c8d", "#277f8e",
                                                 "#1fa187", "#4ac16d", "#a0da39", "#fde725"};

struct Layout {
  double left = 74, top = 62, cell_width, cell_height, gap = 3;
};

std::string Escaped(const std::string& text) {
  std::string out;
  for (char c : text) {
    if (c == '<' || c == '>' || c == '&' || static_cast<unsigned char>(c) < 0x20) {
      out += c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '&' ? "&amp;" : " ";
    } else {
      out += c;
    }
  }
  return out;
}

std::string Text(double x, double y, const char* anchor, int size, const std::string& text) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" font-size=\"{}\">{}</text>\n", x, y,
                     anchor, size, Escaped(text));
}

}  // namespace

std::vector<int> BlockWidths(const HeadPlan& head) {
  const int blocks = head.head_dim / 2;
  std::vector<int> widths(static_cast<size_t>(blocks), 0);
  for (const GroupPlan& group : head.groups) {
    for (int row = group.first_unit * kUnitDims; row < (group.first_unit + group.units) * kUnitDims; ++row) {
      for (int block = 0; block < blocks; ++block) {  // a group's rows of T touch its own blocks only
        const float* pair = &head.key_transform[static_cast<size_t>(row) * head.head_dim + 2 * block];
        if (pair[0] != 0 || pair[1] != 0) widths[static_cast<size_t>(block)] = group.code_width;
      }
    }
  }
  return widths;
}

std::string PlanPicture(const Plan& plan) {
  const ModelFingerprint& m = plan.model;
  const int blocks = m.head_dim / 2, rows = m.layers * m.kv_heads;
  Layout layout;
  layout.cell_width = std::clamp(640.0 / blocks, 6.0, 20.0);
  layout.cell_height = std::clamp(720.0 / rows, 4.0, 14.0);
  const double plot_width = blocks * layout.cell_width;
  const double plot_height = rows * layout.cell_height + (m.layers - 1) * layout.gap;
  const double width = layout.left + plot_width + 30, height = layout.top + plot_height + 92;
  std::string cells, labels;
  std::array<int, 9> counts{};
  for (int l = 0; l < m.layers; ++l) {
    const double layer_top = layout.top + l * (m.kv_heads * layout.cell_height + layout.gap);
    if (l % 5 == 0 || m.layers <= 12) {
      labels += Text(layout.left - 8, layer_top + m.kv_heads * layout.cell_height / 2 + 4, "end", 11,
                     fmt::format("layer {}", l));
    }
    for (int h = 0; h < m.kv_heads; ++h) {
      const std::vector<int> widths = BlockWidths(plan.head(l, h));
      for (int b = 0; b < blocks;) {  // a run of equal width is one rectangle
        int end = b;
        while (end < blocks && widths[static_cast<size_t>(end)] == widths[static_cast<size_t>(b)]) ++end;
        const int w = std::clamp(widths[static_cast<size_t>(b)], 0, 8);
        counts[static_cast<size_t>(w)] += end - b;
        if (w > 0) {
          cells += fmt::format(
              "<rect x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\" fill=\"{}\"/>\n",
              layout.left + b * layout.cell_width, layer_top + h * layout.cell_height,
              (end - b) * layout.cell_width, layout.cell_height - 0.6, kColours[static_cast<size_t>(w)]);
        }
        b = end;
      }
    }
  }
  std::string legend;
  double x = layout.left;
  const double legend_y = layout.top + plot_height + 50;
  for (int w = 1; w <= 8; ++w) {
    if (counts[static_cast<size_t>(w)] == 0) continue;
    const double share = 100.0 * counts[static_cast<size_t>(w)] / (static_cast<double>(rows) * blocks);
    legend += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"14\" height=\"14\" fill=\"{}\"/>\n", x,
                          legend_y, kColours[static_cast<size_t>(w)]);
    legend += Text(x + 19, legend_y + 11.5, "start", 12,
                   fmt::format("{} bit{}, {:.0f}%", w, w == 1 ? "" : "s", share));
    x += 92;
  }
  const double axis_y = layout.top + plot_height + 22;
  return fmt::format(
             "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" "
             "height=\"{1:.0f}\" font-family=\"Helvetica, Arial, sans-serif\" fill=\"#222\">\n"
             "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
             std::max(width, layout.left + 92 * 6.0), height) +
         Text(layout.left, 26, "start", 16,
              fmt::format("Key bits by RoPE block: {}, K{:g}V{:g}", plan.recipe, plan.k_bits, plan.v_bits)) +
         Text(layout.left, 46, "start", 12,
              fmt::format("{}, {} layers x {} KV heads, {:.1f} stored bytes a token a head", m.architecture,
                          m.layers, m.kv_heads, plan.bytes_per_token_per_head())) +
         cells + labels + Text(layout.left, axis_y, "start", 11, "fast: block 0") +
         Text(layout.left + plot_width, axis_y, "end", 11, fmt::format("slow: block {}", blocks - 1)) +
         legend + "</svg>\n";
}

}  // namespace blockgtq
