#include "src/cuda/flash_attention.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "src/cuda/flash_attention_numbers.h"

namespace blockgtq::cuda {
namespace {

constexpr int64_t kSmallestRows = 64;  // a tile of queries: fewer rows take as long
constexpr int64_t kAlignment = 256;

Status Invalid(const std::string& message) { return Status(ErrorCode::kInvalidArgument, message); }

int64_t RoundUp(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

Status Check(const AttentionHeads& h, const HalfKeyValues& kv) {
  if (h.kv_heads <= 0 || h.query_heads <= 0 || h.query_heads % h.kv_heads != 0 || h.head_dim <= 0) {
    return Invalid("attention over fp16: " + std::to_string(h.query_heads) + " query heads over " +
                   std::to_string(h.kv_heads) + " KV heads of " + std::to_string(h.head_dim) +
                   "; query heads must be a multiple of KV heads");
  }
  if (h.head_dim % 8 != 0 || h.head_dim > 256) {
    return Status(ErrorCode::kUnsupported, "attention over fp16: there is no kernel for head dim " +
                                               std::to_string(h.head_dim) +
                                               ", only multiples of 8 up to 256");
  }
  if (kv.max_tokens <= 0 || kv.max_tokens > INT32_MAX) {
    return Invalid("attention over fp16: max_tokens is " + std::to_string(kv.max_tokens));
  }
  if (kv.token_stride % 8 != 0 || kv.head_stride % 8 != 0 || kv.outer_stride % 8 != 0) {
    return Invalid("attention over fp16: strides must be multiples of 8 elements");
  }
  if (kv.pages > 0 && kv.table_stride * kCachePageTokens < kv.max_tokens) {
    return Invalid("attention over fp16: a block table of " + std::to_string(kv.table_stride) +
                   " pages does not reach token " + std::to_string(kv.max_tokens));
  }
  return Status::Ok();
}

void Describe(const AttentionHeads& heads, const HalfKeyValues& kv, CudnnAttentionSpec& spec) {
  spec.query_heads = heads.query_heads;
  spec.kv_heads = heads.kv_heads;
  spec.head_dim = heads.head_dim;
  spec.scale = heads.scale;
  spec.tokens = kv.max_tokens;
  spec.keys = spec.values = {kv.outer_stride, kv.head_stride, kv.token_stride};
  const int64_t row = int64_t{heads.query_heads} * heads.head_dim;
  spec.queries = spec.out = {spec.rows * row, heads.head_dim, row};
  spec.log_sums = {spec.rows * heads.query_heads, 1, heads.query_heads};
  if (kv.pages > 0) {
    spec.pages = kv.pages;
    spec.page_tokens = kCachePageTokens;
    spec.table_stride = kv.table_stride;
  }
}

Result<CudnnAttentionSpec> PrefillSpec(const PrefillCall& call) {
  BGTQ_RETURN_IF_ERROR(Check(call.heads, call.cache));
  if (call.rows <= 0 || call.tokens <= 0 || call.tokens > call.cache.max_tokens ||
      (call.causal && call.rows > call.tokens)) {
    return Invalid("attention of a prompt: " + std::to_string(call.rows) + " rows over " +
                   std::to_string(call.tokens) + " tokens of at most " +
                   std::to_string(call.cache.max_tokens));
  }
  if (call.window < 0 || (call.window > 0 && !call.causal)) {
    return Invalid("attention of a prompt: a window of " + std::to_string(call.window) +
                   (call.causal ? "" : " that is not causal"));
  }
  if (call.rows * call.heads.query_heads * call.heads.head_dim > INT32_MAX) {
    return Invalid("attention of a prompt: " + std::to_string(call.rows) +
                   " rows are more than 2^31 elements; give fewer at once");
  }
  CudnnAttentionSpec spec;
  spec.batch = 1;
  spec.rows = kSmallestRows;
  while (spec.rows < call.rows) spec.rows *= 2;
  Describe(call.heads, call.cache, spec);
  spec.causal = call.causal;
  spec.window = call.tokens > call.window ? call.window : 0;  // otherwise it hides nothing
  spec.log_sum = call.log_sum != nullptr;
  // Numbers that are few by themselves, those of a prompt's first chunk and of whole buffers, go into the
  // plan: cuDNN's kernels are 15 to 20% faster then.
  const bool few = call.tokens == call.rows || call.tokens == call.cache.max_tokens;
  if (spec.rows == call.rows && few && spec.pages == 0) {
    spec.tokens = call.tokens;
    return spec;
  }
  spec.lengths = true;
  // Without packed rows cuDNN writes zeros to all rows of the bound, past the caller's.
  spec.ragged = spec.rows != call.rows;
  return spec;
}

Result<CudnnAttentionSpec> DecodeSpec(const DecodeCall& call) {
  BGTQ_RETURN_IF_ERROR(Check(call.heads, call.cache));
  if (call.batch <= 0) return Invalid("decode attention over fp16: a batch of " + std::to_string(call.batch));
  if (call.cache.pages > 0 && call.lengths == nullptr) {
    return Invalid("decode attention over fp16: a paged cache needs lengths in device memory");
  }
  CudnnAttentionSpec spec;
  spec.batch = call.batch;
  spec.rows = 1;
  Describe(call.heads, call.cache, spec);
  spec.lengths = call.lengths != nullptr;
  spec.log_sum = call.log_sum != nullptr;
  return spec;
}

// Bytes in front of cuDNN's workspace.
int64_t OwnBytes(const CudnnAttentionSpec& spec) {
  const int64_t ints = std::max<int64_t>(spec.batch, sizeof(PrefillNumbers) / sizeof(int32_t));
  return RoundUp(ints * int64_t{sizeof(int32_t)}, kAlignment);
}

Result<bool> IsCapturing(CUstream_st* stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  if (const cudaError_t error = cudaStreamIsCapturing(stream, &status); error != cudaSuccess) {
    return Status(ErrorCode::kUnsupported,
                  std::string("CUDA: state of a stream: ") + cudaGetErrorString(error));
  }
  return status != cudaStreamCaptureStatusNone;
}

}  // namespace

Result<std::unique_ptr<FlashAttention>> FlashAttention::Create() {
  BGTQ_ASSIGN_OR_RETURN(std::shared_ptr<CudnnLibrary> library, CudnnLibrary::Load());
  return std::unique_ptr<FlashAttention>(new FlashAttention(std::move(library)));
}

Result<FlashAttention::Plan*> FlashAttention::Find(const CudnnAttentionSpec& spec, bool may_build) {
  if (const auto found = plans_.find(spec); found != plans_.end()) return &found->second;
  if (!may_build) {
    return Invalid("attention of " + spec.Describe() +
                   ": its plan must be built before the stream is captured (Prepare)");
  }
  Plan plan;
  BGTQ_ASSIGN_OR_RETURN(plan.attention, CudnnAttention::Build(library_, spec));
  const int64_t own = OwnBytes(spec);
  BGTQ_ASSIGN_OR_RETURN(plan.workspace, DeviceBuffer::Allocate(own + plan.attention->workspace_bytes(),
                                                               "attention of " + spec.Describe()));
  // A decoded sequence has one row. Prompts write their numbers at each call.
  const std::vector<int32_t> ones(spec.batch, 1);
  if (const cudaError_t error = cudaMemcpy(plan.workspace.data(), ones.data(), ones.size() * sizeof(int32_t),
                                           cudaMemcpyHostToDevice);
      error != cudaSuccess) {
    return Status(ErrorCode::kUnsupported,
                  std::string("CUDA: attention's lengths: ") + cudaGetErrorString(error));
  }
  return &plans_.emplace(spec, std::move(plan)).first->second;
}

Status FlashAttention::Prefill(const PrefillCall& call, CUstream_st* stream) {
  BGTQ_ASSIGN_OR_RETURN(const CudnnAttentionSpec spec, PrefillSpec(call));
  BGTQ_ASSIGN_OR_RETURN(const bool capturing, IsCapturing(stream));
  BGTQ_ASSIGN_OR_RETURN(Plan* const plan, Find(spec, !capturing));
  auto* const device = plan->workspace.As<PrefillNumbers>();
  const int32_t rows = static_cast<int32_t>(call.rows), heads = call.heads.query_heads;
  const PrefillNumbers numbers = {
      rows, static_cast<int32_t>(call.tokens), {0, rows * heads * call.heads.head_dim}, {0, rows * heads}};
  if (spec.lengths) BGTQ_RETURN_IF_ERROR(LaunchSetNumbers(numbers, device, stream));
  CudnnAttentionPointers pointers;
  pointers.queries = call.queries;
  pointers.keys = call.cache.keys;
  pointers.values = call.cache.values;
  pointers.block_table = call.cache.block_table;
  pointers.out = call.out;
  pointers.log_sum = call.log_sum;
  pointers.row_lengths = &device->rows;
  pointers.token_lengths = &device->tokens;
  pointers.row_elements = device->row_elements;
  pointers.log_sum_elements = device->log_sum_elements;
  return plan->attention->Run(pointers, plan->workspace.data() + OwnBytes(spec), stream);
}

Status FlashAttention::Decode(const DecodeCall& call, CUstream_st* stream) {
  BGTQ_ASSIGN_OR_RETURN(const CudnnAttentionSpec spec, DecodeSpec(call));
  BGTQ_ASSIGN_OR_RETURN(const bool capturing, IsCapturing(stream));
  BGTQ_ASSIGN_OR_RETURN(Plan* const plan, Find(spec, !capturing));
  CudnnAttentionPointers pointers;
  pointers.queries = call.queries;
  pointers.keys = call.cache.keys;
  pointers.values = call.cache.values;
  pointers.block_table = call.cache.block_table;
  pointers.out = call.out;
  pointers.log_sum = call.log_sum;
  pointers.row_lengths = plan->workspace.As<int32_t>();
  pointers.token_lengths = call.lengths;
  return plan->attention->Run(pointers, plan->workspace.data() + OwnBytes(spec), stream);
}

Status FlashAttention::PreparePrefill(const PrefillCall& call) {
  BGTQ_ASSIGN_OR_RETURN(const CudnnAttentionSpec spec, PrefillSpec(call));
  return Find(spec, true).status();
}

Status FlashAttention::PrepareDecode(const DecodeCall& call) {
  BGTQ_ASSIGN_OR_RETURN(const CudnnAttentionSpec spec, DecodeSpec(call));
  return Find(spec, true).status();
}

int64_t FlashAttention::workspace_bytes() const {
  int64_t bytes = 0;
  for (const auto& [spec, plan] : plans_) bytes += plan.workspace.bytes();
  return bytes;
}

}  // namespace blockgtq::cuda
