// See attention_simulated.h.
#include "src/cpu/attention_simulated.h"

#include <algorithm>

namespace blockgtq::cpu {

std::byte* SimulatedCodes::Original(int64_t page) {
  return cache_.PageHead(sequence_, layer_, kv_head_, page) +
         ExactTileBytes(false, cache_.geometry().head_dim, kPageTokens, cache_.geometry().latent_dims > 0);
}

void SimulatedCodes::Place(int64_t begin, int64_t end, const float* keys, const float* values,
                           int64_t stride) {
  const ExactLayout layout = Layout(cache_);
  std::byte* tile = Original(begin / kPageTokens);
  for (int64_t t = begin; t < end; ++t) {
    const float* value = layout.latents ? nullptr : values + (t - begin) * stride;
    StoreExact(layout, keys + (t - begin) * stride, value, static_cast<int>(t % kPageTokens), tile);
  }
}

void SimulatedCodes::Encode(int64_t begin, int64_t end, int64_t coded, Scratch& scratch) {
  const ExactLayout layout = Layout(cache_);
  const SimulatedHead& head = cache_.options().simulated->head(layer_, kv_head_).At(coded);
  const int64_t dim = layout.head_dim, before = std::min<int64_t>(head.history_tokens(), begin);
  scratch.keys.resize(static_cast<size_t>((end - begin) * dim));
  scratch.values.resize(static_cast<size_t>(std::max(end - begin, before) * dim));
  scratch.before.resize(static_cast<size_t>(before * dim));
  const auto load = [&](int64_t first, int64_t last, std::vector<float>& keys) {
    for (int64_t t = first; t < last; ++t) {
      LoadExact(layout, Original(t / kPageTokens), static_cast<int>(t % kPageTokens),
                &keys[static_cast<size_t>((t - first) * dim)],
                &scratch.values[static_cast<size_t>((t - first) * dim)]);
    }
  };
  load(begin - before, begin, scratch.before);
  load(begin, end, scratch.keys);
  scratch.values.resize(scratch.keys.size());
  head.RoundTripKeys(scratch.before, scratch.keys, begin);
  if (!layout.latents) head.RoundTripValues(scratch.values, begin);
  std::byte* tile = cache_.PageHead(sequence_, layer_, kv_head_, begin / kPageTokens);
  for (int64_t t = begin; t < end; ++t) {
    const size_t at = static_cast<size_t>((t - begin) * dim);
    StoreExact(layout, &scratch.keys[at], &scratch.values[at], static_cast<int>(t % kPageTokens), tile);
  }
}

}  // namespace blockgtq::cpu
