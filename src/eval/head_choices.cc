// See head_choices.h.
#include "src/eval/head_choices.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "src/codec/record.h"
#include "src/codec/simulated.h"

namespace blockgtq {
namespace {

constexpr std::array<double, 16> kKeyBits = {1, 1.25, 1.5, 1.75, 2,   2.25, 2.5, 2.75,
                                             3, 3.25, 3.5, 4,    4.5, 5,    6.5, 8};
constexpr std::array<double, 6> kValueBits = {1, 2, 3, 4, 5, 8};
constexpr size_t kSampledVectors = 48;

int64_t GroupBytes(const HeadPlan& head, const GroupPlan& group) {
  return int64_t{group.units} * UnitBytes(group.width) +
         int64_t{kPageTokens} * (head.norm_type == NormType::kHalf ? 2 : 1);
}

int64_t KeyBytes(const HeadPlan& head) {
  int64_t bytes = 0;
  for (const GroupPlan& group : head.groups) bytes += GroupBytes(head, group);
  return bytes;
}

/// Evenly spread vectors of `all` [n, dim]; their places in it go to `places`.
std::vector<float> Sample(std::span<const float> all, size_t dim, std::vector<int64_t>& places) {
  const size_t n = all.size() / dim, count = std::min(n, kSampledVectors);
  std::vector<float> sample;
  for (size_t i = 0; i < count; ++i) {
    const size_t at = (2 * i + 1) * n / (2 * count);
    places.push_back(static_cast<int64_t>(at));
    sample.insert(sample.end(), &all[at * dim], &all[at * dim] + dim);
  }
  return sample;
}

/// Mean over vectors of sum_d weight_d (a - b)^2; an empty weight is 1.
double Error(std::span<const float> a, std::span<const float> b, size_t dim, std::span<const double> weight) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double e = double{a[i]} - b[i];
    sum += e * e * (weight.empty() ? 1.0 : weight[(i % dim) / 2]);
  }
  return sum * static_cast<double>(dim) / static_cast<double>(a.size());
}

/// A side that calibration never moved has no error to choose by: it gets the law 4^-bits.
void FillIdle(std::vector<SideChoice>& choices) {
  const bool moved = std::any_of(choices.begin(), choices.end(),
                                 [](const SideChoice& choice) { return choice.distortion > 0; });
  if (moved) return;
  for (SideChoice& choice : choices) choice.distortion = std::exp2(-2 * choice.bits);
}

/// Drops what a smaller choice does as well.
void KeepUseful(std::vector<SideChoice>& choices) {
  std::stable_sort(choices.begin(), choices.end(),
                   [](const SideChoice& a, const SideChoice& b) { return a.bytes < b.bytes; });
  std::vector<SideChoice> kept;
  for (const SideChoice& choice : choices) {
    if (!kept.empty() && choice.distortion >= kept.back().distortion) continue;
    if (!kept.empty() && choice.bytes == kept.back().bytes) kept.pop_back();
    kept.push_back(choice);
  }
  choices = std::move(kept);
}

}  // namespace

Result<HeadChoices> MakeHeadChoices(const HeadCalibration& calibration, const Recipe& recipe, uint64_t seed,
                                    const std::shared_ptr<const RopeTable>& rope, int layer, int kv_head) {
  HeadChoices choices;
  std::vector<float> keys, values;
  std::vector<int64_t> key_places, value_places;
  const size_t dim = calibration.statistics.key_mean.size();
  for (const double bits : kKeyBits) {
    BGTQ_ASSIGN_OR_RETURN(const HeadPlan plan,
                          recipe.plan_head(calibration, {bits, 2, seed}, layer, kv_head));
    const int64_t bytes = KeyBytes(plan);
    if (!choices.keys.empty() && choices.keys.back().bytes == bytes) continue;
    if (keys.empty()) {
      keys = Sample(calibration.keys, dim, key_places);
      std::vector<float> rotated(dim);
      for (size_t i = 0; i < key_places.size(); ++i) {
        rope->Rotate(&keys[i * dim], key_places[i], rotated.data());
        std::copy(rotated.begin(), rotated.end(), &keys[i * dim]);
      }
    }
    const std::unique_ptr<const SimulatedHead> twin = SimulatePlannedHead(plan, rope);
    std::vector<float> read = keys;
    for (size_t i = 0; i < key_places.size(); ++i)
      twin->RoundTripKeys({}, std::span<float>(read).subspan(i * dim, dim), key_places[i]);
    choices.keys.push_back({bits, bytes, Error(keys, read, dim, calibration.statistics.query_energy)});
  }
  values = Sample(calibration.values, dim, value_places);
  for (const double bits : kValueBits) {
    BGTQ_ASSIGN_OR_RETURN(const HeadPlan plan,
                          recipe.plan_head(calibration, {2, bits, seed}, layer, kv_head));
    std::vector<float> read = values;
    SimulatePlannedHead(plan, rope)->RoundTripValues(read, 0);
    choices.values.push_back({bits, GroupBytes(plan, plan.value), Error(values, read, dim, {})});
  }
  for (std::vector<SideChoice>* side : {&choices.keys, &choices.values}) {
    FillIdle(*side);
    KeepUseful(*side);
  }
  return choices;
}

}  // namespace blockgtq
