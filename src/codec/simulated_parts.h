// What simulated recipes are built from: scalar quantisers as they are published or shipped elsewhere, and
// the loop over a model's heads.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "blockgtq/status.h"
#include "src/codec/recipe.h"

namespace blockgtq {

/// Rounds to FP8 E4M3 (the "fn" kind: no infinities, largest 448), ties to even, saturating.
float RoundToE4m3(float x);

/// Multiplies by the orthonormal Sylvester-Hadamard matrix, its own inverse. x.size(): a power of two.
void Hadamard(std::span<float> x);
/// The same to each run of `size` elements; x.size() is a multiple of size.
void HadamardBlocks(std::span<float> x, int size);

/// A uniform quantiser over a range: value = zero + scale * code, both stored in fp16.
struct UniformRange {
  float scale = 0, zero = 0;
  /// zero = fp16(low), scale = fp16((high - low) / (2^bits - 1)).
  static UniformRange Of(float low, float high, int bits);
  /// The value of the nearest code (ties to even codes), clamped to the range.
  float RoundTrip(float x, int bits) const;
};

/// Quantises runs of `group` consecutive elements (the last may be shorter), each over its own range.
void RoundTripGroups(std::span<float> x, int group, int bits);

/// A code of `bits` bits as the nearest one of half as many over the same range: code / (2^(bits / 2) + 1),
/// rounded (which is never a tie).
int HalveCode(int code, int bits);

/// The choice of a width for each layer, as indices into `widths` (ascending), of the least total cost
/// whose mean width is at most mean_width. cost: [layers][widths]. Exact, by dynamic programming; of equals
/// the narrower in the earlier layers. mean_width >= widths[0].
std::vector<int> ChooseLayerWidths(std::span<const std::vector<double>> cost, std::span<const int> widths,
                                   double mean_width);

/// Ok when K and V bits are those that the recipe's format has; otherwise names them.
Status ExpectBits(std::string_view recipe, double k_bits, double v_bits, const RecipeOptions& options);

using SimulatedHeadList = std::vector<std::unique_ptr<const SimulatedHead>>;

/// make(layer, kv_head, calibration or null) -> Result<std::unique_ptr<const SimulatedHead>>, for every head
/// in order.
template <typename F>
Result<SimulatedHeadList> SimulateEach(const SimulationInput& input, F make) {
  SimulatedHeadList heads;
  for (int layer = 0; layer < input.layers; ++layer) {
    for (int kv_head = 0; kv_head < input.kv_heads; ++kv_head) {
      const HeadCalibration* calibration =
          input.calibration.empty() ? nullptr : &input.calibration[heads.size()];
      BGTQ_ASSIGN_OR_RETURN(std::unique_ptr<const SimulatedHead> head, make(layer, kv_head, calibration));
      heads.push_back(std::move(head));
    }
  }
  return heads;
}

}  // namespace blockgtq
