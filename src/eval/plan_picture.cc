// See plan_picture.h.
#include "src/eval/plan_picture.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "src/eval/svg.h"

namespace blockgtq {

std::string PlanPicture(const Plan& plan) {
  constexpr double kLeft = 74, kTop = 62, kGap = 3, kLegendStep = 92;
  const ModelFingerprint& m = plan.model;
  const int blocks = m.head_dim / 2, rows = m.layers * m.kv_heads;
  const double cell_width = std::clamp(640.0 / blocks, 6.0, 20.0),
               cell_height = std::clamp(720.0 / rows, 4.0, 14.0);
  const double plot_width = blocks * cell_width;
  const double plot_height = rows * cell_height + (m.layers - 1) * kGap;
  SvgCanvas canvas(std::max(kLeft + plot_width + 30, kLeft + kLegendStep * 6), kTop + plot_height + 92);
  canvas.Text({kLeft, 26},
              fmt::format("Key bits by RoPE block: {}, K{:g}V{:g}", plan.recipe, plan.k_bits, plan.v_bits),
              {.size = 16});
  canvas.Text({kLeft, 46},
              fmt::format("{}, {} layers x {} KV heads, {:.1f} stored bytes a token a head", m.architecture,
                          m.layers, m.kv_heads, plan.bytes_per_token_per_head()));
  std::array<int, 9> counts{};
  for (int l = 0; l < m.layers; ++l) {
    const double layer_top = kTop + l * (m.kv_heads * cell_height + kGap);
    if (l % 5 == 0 || m.layers <= 12) {
      canvas.Text({kLeft - 8, layer_top + m.kv_heads * cell_height / 2 + 4}, fmt::format("layer {}", l),
                  {.size = 11, .anchor = SvgAnchor::kEnd});
    }
    for (int h = 0; h < m.kv_heads; ++h) {
      const std::vector<int> widths = BlockWidths(plan.head(l, h));
      for (int b = 0; b < blocks;) {  // a run of equal width is one rectangle
        int end = b;
        while (end < blocks && widths[static_cast<size_t>(end)] == widths[static_cast<size_t>(b)]) ++end;
        const int w = std::clamp(widths[static_cast<size_t>(b)], 0, 8);
        counts[static_cast<size_t>(w)] += end - b;
        if (w > 0) {
          canvas.Rect(kLeft + b * cell_width, layer_top + h * cell_height, (end - b) * cell_width,
                      cell_height - 0.6, SvgWidthColour(w));
        }
        b = end;
      }
    }
  }
  double x = kLeft;
  const double legend_y = kTop + plot_height + 50;
  for (int w = 1; w <= 8; ++w) {
    if (counts[static_cast<size_t>(w)] == 0) continue;
    const double share = 100.0 * counts[static_cast<size_t>(w)] / (static_cast<double>(rows) * blocks);
    canvas.Rect(x, legend_y, 14, 14, SvgWidthColour(w));
    canvas.Text({x + 19, legend_y + 11.5}, fmt::format("{} bit{}, {:.0f}%", w, w == 1 ? "" : "s", share));
    x += kLegendStep;
  }
  const double axis_y = kTop + plot_height + 22;
  canvas.Text({kLeft, axis_y}, "fast: block 0", {.size = 11});
  canvas.Text({kLeft + plot_width, axis_y}, fmt::format("slow: block {}", blocks - 1),
              {.size = 11, .anchor = SvgAnchor::kEnd});
  return canvas.Document();
}

}  // namespace blockgtq
