// Matrices in the order in which tensor products read them.
#pragma once

#include <cstdint>

#include "src/core/half.h"

namespace blockgtq::cuda {

/// m16n8k16 A fragments of a matrix in fp16: [row_blocks][col_blocks][32 lanes][8].
/// at(row, col) gives the matrix; rows past the end are at's to answer.
template <typename At>
void AppendFragments(int row_blocks, int col_blocks, At at, uint16_t* out) {
  for (int rb = 0; rb < row_blocks; ++rb) {
    for (int cb = 0; cb < col_blocks; ++cb) {
      for (int lane = 0; lane < 32; ++lane) {
        for (int r = 0; r < 4; ++r) {
          for (int e = 0; e < 2; ++e) {
            const int row = 16 * rb + (lane >> 2) + 8 * (r & 1);
            const int col = 16 * cb + 2 * (lane & 3) + 8 * (r >> 1) + e;
            *out++ = FloatToHalf(static_cast<float>(at(row, col)));
          }
        }
      }
    }
  }
}

}  // namespace blockgtq::cuda
