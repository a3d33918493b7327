// See attention_probe.h.
#include "src/models/attention_probe.h"

namespace blockgtq {

Status RunProbe(Backend& backend, AttentionCall call, const AttentionProbe& probe, int64_t rows,
                std::vector<std::unique_ptr<Activations>>& kept) {
  std::vector<const Activations*> outputs = {call.out};
  call.observer = nullptr;
  if (kept.size() < probe.caches.size()) kept.resize(probe.caches.size());
  for (size_t i = 0; i < probe.caches.size(); ++i) {
    if (kept[i] == nullptr || kept[i]->rows() < rows)
      kept[i] = backend.MakeActivations(rows, call.out->cols());
    call.cache = probe.caches[i];
    call.out = kept[i].get();
    outputs.push_back(call.out);
    BGTQ_RETURN_IF_ERROR(backend.Attention(call));
  }
  return probe.report(call.layer, outputs);
}

}  // namespace blockgtq
