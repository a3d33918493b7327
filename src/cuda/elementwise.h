// The small operations between the matrix products. Activations are row-major; "hi" is a value rounded to
// fp16, "lo" what the rounding left, times kLowHalfScale (matmul_item.h), in fp16.
//
// early, in every call: it may start before the kernel ahead of it in the stream has finished; it waits
// before it reads what that one wrote, or writes. RmsNorm, Gate, SplitHalves and GatherRows let the kernel
// behind them start before that wait, so that a product behind them streams its weights meanwhile: behind
// them may come only kernels that read nothing but constants before their own wait, as LaunchGemv's do, or
// that start in the ordinary way.
#pragma once

#include <cstdint>

#include "blockgtq/status.h"
#include "src/backend/backend.h"
#include "src/cuda/matmul_item.h"

struct CUstream_st;

namespace blockgtq::cuda {

/// out[r] = table[tokens[r]]: table fp16 [vocabulary, cols], tokens [rows] on the device and within the
/// vocabulary, out fp32 [rows, cols]. cols: a multiple of 8.
Status LaunchEmbed(const uint16_t* table, const int32_t* tokens, int64_t rows, int64_t cols, float* out,
                   bool early, CUstream_st* stream);

/// y = x / sqrt(mean(x^2) + epsilon) * weight, x fp32 [rows, cols], weight fp32 [cols]. Written where not
/// null: hi, lo fp16 [rows, cols], y fp32 [rows, cols]. cols: a multiple of 4, at most 16384.
Status LaunchRmsNorm(const float* x, const float* weight, float epsilon, int64_t rows, int64_t cols,
                     uint16_t* hi, uint16_t* lo, float* y, bool early, CUstream_st* stream);

/// x += y / sqrt(mean(y^2) + epsilon) * weight, x and y fp32 [rows, cols], otherwise as LaunchRmsNorm.
Status LaunchRmsNormAdd(const float* y, const float* weight, float epsilon, int64_t rows, int64_t cols,
                        float* x, bool early, CUstream_st* stream);

/// function(gate) * up / kInnerScale, gate and up fp32 [count]; lo may be null. count: a multiple of 4.
Status LaunchGate(GateFunction function, const float* gate, const float* up, int64_t count, uint16_t* hi,
                  uint16_t* lo, bool early, CUstream_st* stream);

/// x *= factor, x fp32 [count]. count: a multiple of 4.
Status LaunchScale(float* x, float factor, int64_t count, bool early, CUstream_st* stream);

/// x fp32 [count] to hi and, where not null, lo. count: a multiple of 4.
Status LaunchSplitHalves(const float* x, int64_t count, uint16_t* hi, uint16_t* lo, bool early,
                         CUstream_st* stream);
/// y fp32 [count] = hi (+ lo / kLowHalfScale where lo is not null). count: a multiple of 4.
Status LaunchWiden(const uint16_t* hi, const uint16_t* lo, int64_t count, float* y, bool early,
                   CUstream_st* stream);

/// y[i] = x[indices[i]], rows of row_bytes bytes (a multiple of 16) of any type; indices [rows] on the
/// device. y may not overlap x.
Status LaunchGatherRows(const void* x, int64_t row_bytes, const int32_t* indices, int64_t rows, void* y,
                        bool early, CUstream_st* stream);

}  // namespace blockgtq::cuda
