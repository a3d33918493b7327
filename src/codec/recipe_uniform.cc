// Recipe uniform (TQ-MSE): every dim at one width, one Haar rotation, fp16 norms.
#include <array>
#include <numeric>
#include <utility>

#include "src/codec/head_builder.h"

namespace blockgtq {

Result<HeadPlan> PlanUniform(const HeadCalibration& calibration, const RecipeOptions& options, int layer,
                             int kv_head) {
  static constexpr std::array<int, 8> kWidths = {1, 2, 3, 4, 5, 6, 7, 8};
  BGTQ_RETURN_IF_ERROR(CheckCalibration(calibration));
  HeadSpec spec;
  BGTQ_ASSIGN_OR_RETURN(const int key_width, WholeWidth("uniform", "K", options.k_bits, kWidths));
  BGTQ_ASSIGN_OR_RETURN(spec.value_code_width, WholeWidth("uniform", "V", options.v_bits, kWidths));
  spec.head_dim = static_cast<int>(calibration.statistics.key_mean.size());
  spec.norm_type = NormType::kHalf;
  BlockGroup all{std::vector<int>(spec.head_dim / 2), key_width};
  std::iota(all.blocks.begin(), all.blocks.end(), 0);
  spec.groups.push_back(std::move(all));
  return BuildHead(spec, options.seed, layer, kv_head);
}

}  // namespace blockgtq
