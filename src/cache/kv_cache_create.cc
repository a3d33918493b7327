// Creation of kv_cache.h's caches: what is refused, and what every part's size is.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "src/cache/kv_cache.h"
#include "src/cache/kv_cache_impl.h"
#include "src/core/machine_memory.h"

namespace blockgtq {
namespace {

constexpr int kMaxSinks = 64;
constexpr int kSinkUnit = 16;

Status CheckOptions(const CacheGeometry& geometry, const CacheOptions& options) {
  if (geometry.layers < 1 || geometry.kv_heads < 1 || geometry.head_dim < 1) {
    return Invalid(fmt::format("KV cache: {} layers, {} KV heads and head dim {}: each must be at least 1",
                               geometry.layers, geometry.kv_heads, geometry.head_dim));
  }
  if (geometry.latent_dims < 0 || geometry.latent_dims > geometry.head_dim) {
    return Invalid(fmt::format("KV cache: {} latent dims do not fit head dim {}", geometry.latent_dims,
                               geometry.head_dim));
  }
  if (options.max_tokens < 1 || options.max_tokens > std::numeric_limits<int64_t>::max() - kPageTokens) {
    return Invalid(
        fmt::format("KV cache: capacity of {} tokens: give a number from 1 up", options.max_tokens));
  }
  const bool by_layer =
      geometry.windowed.empty() || geometry.windowed.size() == static_cast<size_t>(geometry.layers);
  if (geometry.window < 0 || !by_layer) {
    return Invalid(fmt::format("KV cache: a window of {} in {} of {} layers", geometry.window,
                               geometry.windowed.size(), geometry.layers));
  }
  if (options.kind != CacheKind::kPacked && options.kind != CacheKind::kSimulated) return Status::Ok();
  if (options.sinks < 0 || options.sinks > kMaxSinks) {
    return Invalid(fmt::format("KV cache: {} sinks: give 0 to {}", options.sinks, kMaxSinks));
  }
  if (options.recent < 0 || options.recent > std::numeric_limits<int>::max() - 4 * kPageTokens) {
    return Invalid(fmt::format("KV cache: {} recent tokens: give 0 or more", options.recent));
  }
  return Status::Ok();
}

Status CheckPlan(const CacheGeometry& geometry, const Plan* plan) {
  if (plan == nullptr) return Invalid("KV cache: the packed kind needs a plan");
  const auto expect = [](const char* field, int64_t planned, int64_t wanted) {
    if (planned == wanted) return Status::Ok();
    return Status(ErrorCode::kMismatch,
                  fmt::format("KV cache: the plan has {} {}, the model {}: calibrate this model", field,
                              planned, wanted));
  };
  BGTQ_RETURN_IF_ERROR(expect("layers", plan->model.layers, geometry.layers));
  BGTQ_RETURN_IF_ERROR(expect("kv_heads", plan->model.kv_heads, geometry.kv_heads));
  BGTQ_RETURN_IF_ERROR(expect("head_dim", plan->model.head_dim, geometry.head_dim));
  BGTQ_RETURN_IF_ERROR(expect("head plans", static_cast<int64_t>(plan->heads.size()),
                              CheckedMultiply(geometry.layers, geometry.kv_heads)));
  for (const HeadPlan& head : plan->heads) {
    BGTQ_RETURN_IF_ERROR(expect("a head whose head_dim is", head.head_dim, geometry.head_dim));
    BGTQ_RETURN_IF_ERROR(expect("a head whose latent_dims is", head.latent_dims, geometry.latent_dims));
  }
  return Status::Ok();
}

Status CheckSimulated(const CacheGeometry& geometry, const CacheOptions& options) {
  const SimulatedHeads* simulated = options.simulated.get();
  if (simulated == nullptr) return Invalid("KV cache: the simulated kind needs simulated heads");
  if (simulated->layers != geometry.layers || simulated->kv_heads != geometry.kv_heads ||
      simulated->head_dim != geometry.head_dim ||
      simulated->heads.size() != static_cast<size_t>(geometry.layers) * geometry.kv_heads) {
    return Status(
        ErrorCode::kMismatch,
        fmt::format(
            "KV cache: recipe {} is simulated for {} layers, {} KV heads and head dim {}, the model has "
            "{}, {} and {}",
            simulated->recipe, simulated->layers, simulated->kv_heads, simulated->head_dim, geometry.layers,
            geometry.kv_heads, geometry.head_dim));
  }
  const int unit = simulated->token_unit();
  if (unit < 1 || kPageTokens % unit != 0) {
    return Invalid(
        fmt::format("KV cache: recipe {} codes {} tokens together, which does not divide a page of {}",
                    simulated->recipe, unit, kPageTokens));
  }
  if (unit > 1 && options.recent < unit) {
    return Invalid(
        fmt::format("KV cache: recipe {} codes {} tokens together and keeps those of an unfinished group "
                    "exactly: give --recent {} or more",
                    simulated->recipe, unit, unit));
  }
  return Status::Ok();
}

// Bytes of an exact tile, or -1 when they do not fit.
int64_t TileBytes(bool half, const CacheGeometry& geometry, int tile_tokens) {
  return CheckedMultiply(ExactTileBytes(half, 1, tile_tokens, geometry.latent_dims > 0), geometry.head_dim);
}

// Simulated caches are for studies, and four times as large as fp16 ones: what the host cannot hold is said
// before minutes of work, where the system would give the addresses and end the process later.
Status CheckRoom(int64_t bytes, const std::string& what) {
  const std::optional<MachineMemory> memory = ReadMachineMemory();
  if (!memory.has_value() || bytes <= memory->free) return Status::Ok();
  return Status(ErrorCode::kOutOfMemory,
                fmt::format("{}: {} bytes of host memory wanted, {} of {} are free; use fewer tokens", what,
                            bytes, memory->free, memory->total));
}

}  // namespace

Status KvCache::Impl::MakeGroups(int64_t pages, const std::vector<int64_t>& page_bytes,
                                 const std::string& what) {
  group_of_layer.resize(static_cast<size_t>(geometry.layers));
  layer_in_group.resize(static_cast<size_t>(geometry.layers));
  for (const bool windowed : {false, true}) {
    PageGroup group;
    std::vector<int64_t> bytes;
    for (int layer = 0; layer < geometry.layers; ++layer) {
      if (geometry.is_windowed(layer) != windowed) continue;
      group_of_layer[static_cast<size_t>(layer)] = static_cast<int>(groups.size());
      layer_in_group[static_cast<size_t>(layer)] = static_cast<int>(group.layers.size());
      group.layers.push_back(layer);
      bytes.push_back(page_bytes[static_cast<size_t>(layer)]);
    }
    if (group.layers.empty()) continue;
    group.window = windowed ? geometry.window : 0;
    group.history = options.simulated != nullptr ? options.simulated->history_tokens() : 0;
    // As many blocks as the others have: a prompt needs them until it is stored.
    BGTQ_ASSIGN_OR_RETURN(group.pool, PagePool::Create(memory(), std::move(bytes), pages, what));
    groups.push_back(std::move(group));
  }
  return Status::Ok();
}

Result<std::unique_ptr<KvCache>> KvCache::Create(const CacheGeometry& geometry, const CacheOptions& options,
                                                 const Plan* plan) {
  BGTQ_RETURN_IF_ERROR(CheckOptions(geometry, options));
  std::unique_ptr<KvCache> cache(new KvCache);
  Impl& impl = *cache->impl_;
  impl.geometry = geometry;
  impl.options = options;
  if (options.memory == nullptr) impl.options.memory = &HostMemory();
  const int64_t pages = PagesOf(options.max_tokens);
  const Status too_large(ErrorCode::kOutOfMemory,
                         fmt::format("KV cache of {} tokens, {} recent: its size does not fit 64 bits",
                                     options.max_tokens, options.recent));
  const int64_t capacity = CheckedMultiply(pages, kPageTokens);
  const int64_t heads = CheckedMultiply(geometry.layers, geometry.kv_heads);
  if (capacity < 0 || heads > std::numeric_limits<int32_t>::max()) return too_large;
  impl.options.max_tokens = capacity;

  if (impl.coded()) {
    if (impl.packed()) {
      BGTQ_RETURN_IF_ERROR(CheckPlan(geometry, plan));
      impl.plan = plan;
    } else {
      BGTQ_RETURN_IF_ERROR(CheckSimulated(geometry, options));
    }
    impl.sink_tile_tokens = (options.sinks + kSinkUnit - 1) / kSinkUnit * kSinkUnit;
    if (options.recent > 0) {
      // At most recent + 64 tokens are exact, from the start of a page (or later in it) on.
      // No sequence is longer than the cache.
      impl.window_tiles = static_cast<int>(std::min<int64_t>(
          (options.recent + kPageTokens - 1) / kPageTokens + 1, (options.max_tokens - 1) / kPageTokens + 1));
    }
    impl.window_tile_bytes = TileBytes(true, geometry, kPageTokens);
    impl.sink_tile_bytes = TileBytes(true, geometry, impl.sink_tile_tokens);
    const int64_t window = CheckedMultiply(impl.window_tile_bytes, impl.window_tiles);
    if (window < 0 || window > std::numeric_limits<int64_t>::max() - impl.sink_tile_bytes) return too_large;
    impl.exact_bytes = CheckedMultiply(window + impl.sink_tile_bytes, heads);
    if (impl.exact_bytes < 0) return too_large;
  } else {
    impl.options.sinks = impl.options.recent = 0;  // every token is exact anyway
  }
  if (options.kind != CacheKind::kSimulated) impl.options.simulated = nullptr;

  std::vector<int64_t> page_bytes(geometry.layers, 0);
  for (int layer = 0; layer < geometry.layers; ++layer) {
    for (int head = 0; head < geometry.kv_heads; ++head) {
      int64_t bytes;
      if (impl.packed()) {
        impl.layouts.push_back(RecordLayout::For(plan->head(layer, head)));
        bytes = impl.layouts.back().bytes;
        if (bytes <= 0) {
          return Invalid(
              fmt::format("KV cache: the plan stores nothing for layer {}, KV head {}", layer, head));
        }
      } else if (impl.coded()) {
        bytes = CheckedMultiply(2, TileBytes(false, geometry, kPageTokens));
      } else {
        bytes = TileBytes(options.kind == CacheKind::kHalf, geometry, kPageTokens);
      }
      impl.head_bytes.push_back(bytes);
      impl.head_offset.push_back(page_bytes[layer]);
      if (__builtin_add_overflow(page_bytes[layer], bytes, &page_bytes[layer])) return too_large;
    }
  }
  const std::string what = fmt::format("KV cache of {} tokens", capacity);
  if (options.kind == CacheKind::kSimulated) {
    int64_t bytes = 0;
    for (const int64_t of_layer : page_bytes) {
      if (__builtin_add_overflow(bytes, of_layer, &bytes)) return too_large;
    }
    bytes = CheckedMultiply(bytes, pages);
    if (bytes < 0) return too_large;
    BGTQ_RETURN_IF_ERROR(CheckRoom(bytes, what));
  }
  BGTQ_RETURN_IF_ERROR(impl.MakeGroups(pages, page_bytes, what));
  return cache;
}

}  // namespace blockgtq
