// Names that the plan file's writer and reader share.
#pragma once

#include <string>

namespace blockgtq::plan_file {

inline constexpr char kFormat[] = "blockgtq-plan";
inline constexpr char kBudget[] = "budget";
inline constexpr char kBitsByHead[] = "bits_by_head";
inline constexpr char kLog8[] = "log8";
inline constexpr char kHalf[] = "half";
inline constexpr char kNearest[] = "nearest";
inline constexpr char kSearched[] = "searched";

inline std::string HeadPrefix(int layer, int kv_head) {
  return "layers." + std::to_string(layer) + ".heads." + std::to_string(kv_head) + ".";
}

}  // namespace blockgtq::plan_file
