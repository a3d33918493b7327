// See layer_attention.h.
#include "src/cuda/layer_attention.h"

#include <fmt/format.h>

#include <limits>

namespace blockgtq::cuda {

Status CheckCache(const KvCache& cache) {
  if (cache.options().kind == CacheKind::kFloat) {
    return Status(ErrorCode::kUnsupported,
                  "--recipe fp32: the GPU has no fp32 cache; use fp16, or --device cpu");
  }
  if (cache.options().max_tokens > std::numeric_limits<int32_t>::max()) {
    return Status(
        ErrorCode::kUnsupported,
        fmt::format("KV cache of {} tokens: positions on the GPU have 31 bits", cache.options().max_tokens));
  }
  return Status::Ok();
}

}  // namespace blockgtq::cuda
