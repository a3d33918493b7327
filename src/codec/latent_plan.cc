// PlanHead (recipe.h), and how a head of latents is planned: as two heads, the rope key and the latent, whose
// groups are then put together by width.
#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>
#include <vector>

#include "src/codec/head_builder.h"
#include "src/codec/recipe.h"

namespace blockgtq {
namespace {

/// Dims [first, first + dims) of a calibration, as a head of its own. Only its keys matter.
HeadCalibration Part(const HeadCalibration& whole, int first, int dims) {
  const auto cut = [](const std::vector<double>& from, int at, int count) {
    return std::vector<double>(from.begin() + at, from.begin() + at + count);
  };
  const HeadStatistics& s = whole.statistics;
  HeadCalibration part;
  part.statistics = {cut(s.query_energy, first / 2, dims / 2), cut(s.key_energy, first / 2, dims / 2),
                     cut(s.centred_key_energy, first / 2, dims / 2), cut(s.key_mean, first, dims), s.tokens};
  const size_t stride = s.key_mean.size();
  for (size_t at = static_cast<size_t>(first); at < whole.keys.size(); at += stride) {
    const auto row = whole.keys.begin() + static_cast<std::ptrdiff_t>(at);
    part.keys.insert(part.keys.end(), row, row + dims);
  }
  part.values = part.keys;
  return part;
}

/// An error of the latent reaches logits, weighted with its block's query energy, and the output, where every
/// block weighs the same. Both count alike: the mean query energy is added to each block's.
void WeighAsValueToo(HeadStatistics& latent) {
  const std::vector<double>& q = latent.query_energy;
  const double mean = std::accumulate(q.begin(), q.end(), 0.0) / static_cast<double>(q.size());
  for (double& energy : latent.query_energy) energy += mean;
}

struct PartPlan {
  const HeadPlan* plan;
  int first_dim;
};

/// Appends a group's rows of a part's [P, dims] matrix to the whole's [P, D].
void AppendRows(const std::vector<float>& part, const GroupPlan& group, int dims, int first_dim, int head_dim,
                std::vector<float>& whole) {
  const int rows = kUnitDims * group.units, first_row = kUnitDims * group.first_unit;
  const size_t at = whole.size();
  whole.resize(at + static_cast<size_t>(rows) * head_dim, 0.0f);
  for (int r = 0; r < rows; ++r) {
    std::copy_n(part.begin() + static_cast<std::ptrdiff_t>(first_row + r) * dims, dims,
                whole.begin() + static_cast<std::ptrdiff_t>(at) + static_cast<std::ptrdiff_t>(r) * head_dim +
                    first_dim);
  }
}

/// rope: of the first dims, whole units of 8 blocks.
HeadPlan Join(const HeadPlan& rope, const HeadPlan& latent) {
  HeadPlan head;
  head.head_dim = rope.head_dim + latent.head_dim;
  head.latent_dims = latent.head_dim;
  head.norm_type = rope.norm_type;
  head.rounding = rope.rounding;
  std::vector<std::pair<PartPlan, GroupPlan>> groups;
  for (const PartPlan part : {PartPlan{&rope, 0}, PartPlan{&latent, rope.head_dim}}) {
    for (const GroupPlan& group : part.plan->groups) groups.emplace_back(part, group);
    head.score.insert(head.score.end(), part.plan->score.begin(), part.plan->score.end());
    if (part.plan->mean_units.empty()) continue;
    head.key_mean.resize(static_cast<size_t>(head.head_dim), 0.0f);
    std::copy(part.plan->key_mean.begin(), part.plan->key_mean.end(), head.key_mean.begin() + part.first_dim);
    for (const int unit : part.plan->mean_units)
      head.mean_units.push_back(unit + part.first_dim / (2 * kMeanUnitBlocks));
  }
  std::stable_sort(groups.begin(), groups.end(),
                   [](const auto& a, const auto& b) { return a.second.width > b.second.width; });
  for (const auto& [part, group] : groups) {
    const int dims = part.plan->head_dim;
    AppendRows(part.plan->key_transform, group, dims, part.first_dim, head.head_dim, head.key_transform);
    AppendRows(part.plan->query_transform, group, dims, part.first_dim, head.head_dim, head.query_transform);
    GroupPlan placed = group;
    placed.first_unit = head.key_units();
    head.groups.push_back(placed);
  }
  if (head.score.size() != static_cast<size_t>(head.head_dim) / 2) head.score.clear();
  return head;
}

}  // namespace

Result<HeadPlan> PlanHead(const Recipe& recipe, const HeadCalibration& calibration,
                          const RecipeOptions& options, int layer, int kv_head) {
  if (calibration.latent_dims == 0) return recipe.plan_head(calibration, options, layer, kv_head);
  BGTQ_RETURN_IF_ERROR(CheckCalibration(calibration));
  const int dim = static_cast<int>(calibration.statistics.key_mean.size());
  const int latent_dims = calibration.latent_dims, rope_dims = dim - latent_dims;
  if (latent_dims % kUnitDims != 0 || rope_dims < kUnitDims || rope_dims % kUnitDims != 0) {
    return Status(ErrorCode::kInvalidArgument,
                  "a rope key and a latent are planned in whole units of 16 dims each");
  }
  HeadCalibration latent = Part(calibration, rope_dims, latent_dims);
  WeighAsValueToo(latent.statistics);
  RecipeOptions latent_options = options;
  latent_options.k_bits = std::max(options.k_bits, options.v_bits);
  // Each part has rotations of its own.
  BGTQ_ASSIGN_OR_RETURN(const HeadPlan rope_plan,
                        recipe.plan_head(Part(calibration, 0, rope_dims), options, layer, 2 * kv_head));
  BGTQ_ASSIGN_OR_RETURN(const HeadPlan latent_plan,
                        recipe.plan_head(latent, latent_options, layer, 2 * kv_head + 1));
  return Join(rope_plan, latent_plan);
}

}  // namespace blockgtq
