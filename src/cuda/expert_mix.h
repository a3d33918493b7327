// A mixture of gated feed-forwards (ExpertMix of backend.h): a router's logits choose experts for each row,
// the choices are grouped by expert, and an expert's weights are read once for up to 32 rows of its own. A
// *choice* is a row and one of its places: number row * chosen + place.
//
// early, in every call: as in elementwise.h; each kernel waits before it reads or writes anything, and lets
// the kernel behind it start only then.
#pragma once

#include <cstdint>
#include <span>

#include "blockgtq/status.h"
#include "src/backend/backend.h"

struct CUstream_st;

namespace blockgtq::cuda {

inline constexpr int kMaxExperts = 256;  // their addresses travel as a kernel's arguments
inline constexpr int kMaxChosen = 32;

/// An expert with rows, and where its choices lie in ExpertRoutes::grouped.
struct ExpertGroup {
  int32_t expert, first, count;
};

/// Device memory that one mixture of `rows` rows works in; rows * chosen choices.
struct ExpertRoutes {
  int64_t rows = 0;
  int32_t experts = 0, chosen = 0;
  int32_t* expert = nullptr;      // [choices]
  float* weight = nullptr;        // [choices]
  int32_t* grouped = nullptr;     // [choices]: choices, those of an expert together
  ExpertGroup* groups = nullptr;  // [experts]; the first *group_count are used
  int32_t* group_count = nullptr;
};

/// Fills `routes` from logits fp32 [rows, experts]. Errors: kUnsupported beyond kMaxExperts or kMaxChosen.
Status LaunchRouteExperts(const float* logits, bool renormalise, float scale, const ExpertRoutes& routes,
                          bool early, CUstream_st* stream);

/// x: fp16 [rows, in], with a low half (matmul_item.h) or null, its value times x_scale.
struct ExpertInput {
  const uint16_t *hi = nullptr, *lo = nullptr;
  float scale = 1;
};

/// inner = function(G x) * (U x) / kInnerScale for every choice: hi, lo fp16 [choices, inner], lo null
/// without a low half in x. gates, ups: fp16 [inner, in] of every expert, device addresses. in: a multiple of
/// 8.
Status LaunchExpertGate(std::span<const uint16_t* const> gates, std::span<const uint16_t* const> ups,
                        GateFunction function, const ExpertInput& x, const ExpertRoutes& routes, int64_t in,
                        int64_t inner, uint16_t* hi, uint16_t* lo, bool early, CUstream_st* stream);

/// out = D inner for every choice: fp32 [choices, out_cols]. downs: fp16 [out_cols, inner]. inner: a multiple
/// of 8.
Status LaunchExpertDown(std::span<const uint16_t* const> downs, const ExpertInput& inner_halves,
                        const ExpertRoutes& routes, int64_t inner, int64_t out_cols, float* out, bool early,
                        CUstream_st* stream);

/// y += the sum of a row's choices in `out`, by their weights, in the order of their places: y fp32
/// [rows, cols]. cols: a multiple of 4.
Status LaunchCombineExperts(const float* out, const ExpertRoutes& routes, int64_t cols, float* y, bool early,
                            CUstream_st* stream);

}  // namespace blockgtq::cuda
