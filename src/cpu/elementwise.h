// Small vector operations between the matrix products, in Highway. One row (token) a call.
#pragma once

#include <cstdint>

namespace blockgtq::cpu {

/// y = x / sqrt(mean(x^2) + epsilon) * weight, all [n]; the mean in double.
void RmsNorm(const float* x, const float* weight, float epsilon, int64_t n, float* y);
/// gate = silu(gate) * up, [n].
void SiluMul(float* gate, const float* up, int64_t n);
/// gate = gelu(gate) * up, [n], with GELU's tanh form: 0.5 z (1 + tanh(sqrt(2 / pi) (z + 0.044715 z^3))).
void GeluTanhMul(float* gate, const float* up, int64_t n);
/// y += x, [n].
void Add(const float* x, int64_t n, float* y);
/// log(sum exp(x)) of [n], stable.
double LogSumExp(const float* x, int64_t n);
/// sum p (log p - log q), p = softmax(base), q = softmax(test), of [n]; base_sum: LogSumExp(base). NaN where
/// one of either is, or +infinity. Tokens of p < e^-50 count nothing.
double KlDivergence(const float* base, double base_sum, const float* test, int64_t n);
/// The first index of the largest of [n]; -1 where one is NaN or +infinity, or all are -infinity.
int32_t LargestIndex(const float* x, int64_t n);

}  // namespace blockgtq::cpu
