// Recipe paper (arXiv 2606.24033): greedy widths 1..8 by block energy, blocks of one width form a group.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "src/codec/head_builder.h"
#include "src/core/allocator.h"

namespace blockgtq {

Result<HeadPlan> PlanPaper(const HeadCalibration& calibration, const RecipeOptions& options, int layer,
                           int kv_head) {
  static constexpr std::array<int, 8> kWidths = {1, 2, 3, 4, 5, 6, 7, 8};
  BGTQ_RETURN_IF_ERROR(CheckCalibration(calibration));
  if (!(options.k_bits >= 1 && options.k_bits <= 8)) {
    return Status(ErrorCode::kInvalidArgument,
                  fmt::format("recipe paper: K bits {} must lie within 1..8", options.k_bits));
  }
  HeadSpec spec;
  BGTQ_ASSIGN_OR_RETURN(spec.value_code_width, WholeWidth("paper", "V", options.v_bits, kWidths));
  const HeadStatistics& s = calibration.statistics;
  spec.head_dim = static_cast<int>(s.key_mean.size());
  spec.norm_type = NormType::kHalf;

  const int blocks = spec.head_dim / 2;
  std::vector<double> score(blocks);
  for (int i = 0; i < blocks; ++i) score[i] = 0.5 * (s.query_energy[i] + s.key_energy[i]);
  std::vector<float> kept_score(score.begin(), score.end());
  if (std::all_of(score.begin(), score.end(), [](double v) { return v == 0; })) {
    std::fill(score.begin(), score.end(), 1.0);  // a head that calibration never excited: uniform widths
  }
  const std::vector<int> widths =
      AllocateGreedy(score, static_cast<int>(std::lround(options.k_bits * blocks)));
  for (int width = 8; width >= 1; --width) {
    BlockGroup group{{}, width};
    for (int i = 0; i < blocks; ++i) {
      if (widths[i] == width) group.blocks.push_back(i);
    }
    if (!group.blocks.empty()) spec.groups.push_back(std::move(group));
  }
  HeadPlan head = BuildHead(spec, options.seed, layer, kv_head);
  head.score = std::move(kept_score);
  return head;
}

}  // namespace blockgtq
