// Mixtures of experts on the CPU: the router's choice a row, and rows gathered by expert so that every expert
// is one product over all rows that chose it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace blockgtq::cpu {

/// One row that an expert takes.
struct ExpertShare {
  int64_t row = 0;
  float weight = 0;
};

/// The `chosen` largest of softmax(logits), the lower index of equals; weights are their probabilities,
/// divided by their sum where `renormalise`, times scale. logits [experts]; a NaN among them is chosen last
/// and makes every weight NaN, so that a damaged router shows. The chosen come in order of falling
/// probability. choice, weights: [chosen], chosen <= experts.
void ChooseExperts(std::span<const float> logits, bool renormalise, float scale, std::span<int> choice,
                   std::span<float> weights);

/// Who takes what: for every expert its rows in order. logits [rows, experts].
std::vector<std::vector<ExpertShare>> ShareRows(const float* logits, int64_t rows, int experts, int chosen,
                                                bool renormalise, float scale);

}  // namespace blockgtq::cpu
