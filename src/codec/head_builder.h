// What every recipe shares: seeds, checks of the calibration, and the assembly of a HeadPlan from block
// lists.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "blockgtq/status.h"
#include "src/codec/plan.h"
#include "src/codec/recipe.h"

namespace blockgtq {

/// The Haar seed of one rotation: h = MixBits(seed), then h = MixBits(h + 0x9e3779b97f4a7c15 (x + 1)) for x =
/// layer, kv_head, stream (MixBits is SplitMix64's finaliser). Stream 0 is V's, 1 + g is key group g's.
uint64_t RotationSeed(uint64_t seed, int layer, int kv_head, int stream);

/// The container of a code width: itself, or 8 for 6 and 7.
constexpr int StoredWidth(int code_width) { return code_width == 6 || code_width == 7 ? 8 : code_width; }

/// Ok when statistics are finite, non-negative and of one size, and keys and values are [n > 0, head_dim] and
/// finite.
Status CheckCalibration(const HeadCalibration& calibration);

/// Ok with the width when `bits` is a whole number among `widths`; otherwise names the `recipe`, the `side`
/// ("K" or "V") and the widths it has.
Result<int> WholeWidth(std::string_view recipe, std::string_view side, double bits,
                       std::span<const int> widths);

/// Frequency blocks that share a width, in the order in which the rotation mixes them.
struct BlockGroup {
  std::vector<int> blocks;
  int code_width;
};

struct HeadSpec {
  int head_dim = 0;
  std::vector<BlockGroup> groups;  // by descending width; every block once
  std::vector<double> scale;       // c_i [head_dim / 2], applied before the rotation; empty: 1
  int value_code_width = 0;
  NormType norm_type = NormType::kLog8;
  Rounding rounding = Rounding::kNearest;
};

/// Groups, T = rotation diag(c), T^-T = rotation diag(1 / c) and T_v; norm references 1, no mean, no score.
HeadPlan BuildHead(const HeadSpec& spec, uint64_t seed, int layer, int kv_head);

}  // namespace blockgtq
