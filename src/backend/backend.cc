// Bookkeeping that every backend shares.
#include "src/backend/backend.h"

#include <fmt/format.h>

#include <algorithm>

namespace blockgtq {
namespace {

Status Lacks(const Backend& backend, std::string_view operations) {
  return {ErrorCode::kUnsupported,
          fmt::format("the {} backend has no {}: run with --device cpu", backend.name(), operations)};
}
Status Lacks(const Backend& backend, Operation operation) { return Lacks(backend, OperationName(operation)); }

}  // namespace

std::string_view OperationName(Operation operation) {
  switch (operation) {
    case Operation::kNormHeads:
      return "norms of queries and keys";
    case Operation::kNormAdd:
      return "norms after attention and feed-forward";
    case Operation::kUnnormedInput:
      return "feed-forward without a norm before it";
    case Operation::kGeluGate:
      return "GELU gate";
    case Operation::kScaleRows:
      return "scaled embeddings";
    case Operation::kExperts:
      return "mixture of experts";
    case Operation::kSlidingWindow:
      return "sliding-window attention";
    case Operation::kRopesByLayer:
      return "RoPE that differs by layer";
    case Operation::kLatentAttention:
      return "multi-head latent attention (MLA)";
  }
  return "such operation";
}

Status RequireOperations(const Backend& backend, std::span<const Operation> needed, std::string_view what) {
  std::string lacking;
  for (const Operation operation : needed) {
    if (backend.Has(operation)) continue;
    lacking += fmt::format("{}{}", lacking.empty() ? "" : ", ", OperationName(operation));
  }
  return lacking.empty() ? Status::Ok() : Lacks(backend, lacking).WithContext(std::string(what));
}

Status Backend::NormHeads(const Norm&, int64_t, int64_t, Activations&) {
  return Lacks(*this, Operation::kNormHeads);
}
Status Backend::ReadRows(const Activations& x, int64_t rows, float* out) {
  for (int64_t r = 0; r < rows; ++r) BGTQ_RETURN_IF_ERROR(ReadRow(x, r, out + r * x.cols()));
  return Status::Ok();
}
Status Backend::NormAdd(const Activations&, const Norm&, int64_t, Activations&) {
  return Lacks(*this, Operation::kNormAdd);
}
Status Backend::Scale(float, int64_t, Activations&) { return Lacks(*this, Operation::kScaleRows); }
Status Backend::MixExperts(const ExpertMix&, const Activations&, int64_t, Activations&) {
  return Lacks(*this, Operation::kExperts);
}
Status Backend::CopyHeads(const Activations&, const HeadColumns&, int, int64_t, Activations&,
                          const HeadColumns&) {
  return Lacks(*this, Operation::kLatentAttention);
}
Status Backend::MatMulHeads(std::span<const Weight* const>, const Activations&, const HeadColumns&, int64_t,
                            Activations&, const HeadColumns&) {
  return Lacks(*this, Operation::kLatentAttention);
}

int64_t CodedEndAfter(const KvCache& cache, const BatchSlice& slice) {
  const int64_t before = cache.state(slice.sequence).coded_end;
  return std::max(before, cache.CodedEndBefore(slice.first_position + slice.count));
}

}  // namespace blockgtq
