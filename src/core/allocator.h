// Bit allocation over RoPE blocks: the paper's greedy allocator and the aligned dynamic programme.
#pragma once

#include <span>
#include <vector>

namespace blockgtq {

/// Widths of the paper's recipe: starts every block at min_width and gives one bit at a time to the block of
/// largest gain 3/4 s_i 4^-b_i until the widths sum to budget_bits. Ties go to the lower index. Optimal for
/// sum s_i 4^-b_i (paper.md, Theorem 1). scores [blocks] >= 0; budget is clamped to [blocks * min_width,
/// blocks * max_width].
std::vector<int> AllocateGreedy(std::span<const double> scores, int budget_bits, int min_width = 1,
                                int max_width = 8);

/// A run of consecutive sorted blocks that shares a width and a norm.
struct AlignedGroup {
  int first_block;  // in the sorted order
  int blocks;       // a multiple of the unit's blocks
  int width;
  bool operator==(const AlignedGroup&) const = default;
};

struct AlignedOptions {
  int unit_blocks = 8;  // 16 dims
  int max_groups = 8;
  int group_cost_bits = 8;  // a norm byte a token
};

/// The aligned recipe: splits blocks sorted by descending amplitude w_i = sqrt(Q_i Kc_i) into contiguous
/// groups of whole units with widths in {1, 2, 3, 4, 5, 8}, minimising sum over groups (sum w)^2 / n_blocks *
/// D(width) subject to code bits + norm bits <= budget_bits a token (code bits = width * 2 * blocks;
/// group_cost_bits a group). Exact among groups in order of descending width, where neighbours may share a
/// width (a norm of their own can be worth its byte). Empty when the budget cannot hold one bit a dim and one
/// norm, or when the blocks are not a whole number of units.
std::vector<AlignedGroup> AllocateAligned(std::span<const double> sorted_amplitudes, double budget_bits,
                                          const AlignedOptions& options = {});
/// The objective that AllocateAligned minimises.
double AlignedCost(std::span<const double> sorted_amplitudes, std::span<const AlignedGroup> groups);

}  // namespace blockgtq
