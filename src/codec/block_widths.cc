// See block_widths.h.
#include "src/codec/block_widths.h"

namespace blockgtq {

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

}  // namespace blockgtq
