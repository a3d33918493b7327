// Attention over keys and values in fp16 by cuDNN: a prompt's chunk over rows of a buffer or over pages, and
// decoding over the paged fp16 cache, which is what the packed cache is measured against.
//
// cuDNN builds a plan for every shape, which takes 40 to 70 ms, and up to a second where it compiles a
// kernel. So shapes are rounded up to few: rows to a power of two, tokens to the caller's bound; the actual
// numbers are read on the device, and a captured graph stays right as sequences grow. A plan is built at its
// first call and kept with its workspace; a call in a stream that is being captured needs a plan that is
// there (Prepare...).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "blockgtq/status.h"
#include "src/cuda/device_memory.h"
#include "src/cuda/flash_attention_cudnn.h"

struct CUstream_st;

namespace blockgtq::cuda {

inline constexpr int kCachePageTokens = 64;  // of the paged fp16 cache

struct AttentionHeads {
  int query_heads = 0;  // a multiple of kv_heads
  int kv_heads = 0, head_dim = 0;
  float scale = 1;  // of the logits, before the exponential
};

/// Where keys and values in fp16 are: in rows, or in pages when `pages` > 0. Strides in elements, multiples
/// of 8; the dims of a head are contiguous. Slots of a sequence's last 128 tokens that hold no token must
/// hold finite numbers: they are multiplied by zero.
struct HalfKeyValues {
  const uint16_t *keys = nullptr, *values = nullptr;  // of the first token, or slot 0 of page 0; KV head 0
  int64_t token_stride = 0, head_stride = 0;
  int64_t outer_stride = 0;  // from a sequence to the next, or from a page to the next
  int64_t max_tokens = 0;    // bound of a sequence's tokens: part of the plan's key, so take few values
  int64_t pages = 0;         // 64 tokens each
  /// [batch][table_stride], device: tile t of a sequence is page block_table[t]. Entries beyond a sequence's
  /// tokens, up to max_tokens, must be page numbers too.
  const int32_t* block_table = nullptr;
  int64_t table_stride = 0;
};

/// Consecutive query rows of one sequence.
struct PrefillCall {
  AttentionHeads heads;
  HalfKeyValues cache;
  int64_t rows = 0, tokens = 0;
  /// Row i sees tokens [0, tokens - rows + i + 1); needs rows <= tokens. Otherwise every row sees every
  /// token.
  bool causal = true;
  /// With causal, a row sees no more than so many tokens, its own included; 0: all.
  int64_t window = 0;
  const uint16_t* queries = nullptr;  // fp16 [rows][query_heads][head_dim], device
  uint16_t* out = nullptr;            // the same shape
  float* log_sum = nullptr;  // [rows][query_heads] natural logarithm of the sum of exponentials, or null
};

/// One query row of every sequence of a batch.
struct DecodeCall {
  AttentionHeads heads;
  HalfKeyValues cache;
  int batch = 0;
  const int32_t* lengths = nullptr;   // [batch] tokens, device, at least 1; null: max_tokens each
  const uint16_t* queries = nullptr;  // fp16 [batch][query_heads][head_dim], device
  uint16_t* out = nullptr;            // the same shape
  float* log_sum = nullptr;           // [batch][query_heads], or null
};

/// One thread and one stream at a time: plans have their own workspace.
class FlashAttention {
 public:
  /// Errors: kUnsupported when cuDNN cannot be loaded (says what is missing) or there is no device.
  static Result<std::unique_ptr<FlashAttention>> Create();

  /// Errors: kUnsupported naming the shape when cuDNN has no kernel; kInvalidArgument when sizes contradict
  /// each other, or when the stream is captured and the plan is not there; kOutOfMemory (workspace).
  Status Prefill(const PrefillCall& call, CUstream_st* stream);
  Status Decode(const DecodeCall& call, CUstream_st* stream);

  /// Build the plan that a call of these shapes uses; no pointer of the call is read, only whether log_sum,
  /// lengths are null.
  Status PreparePrefill(const PrefillCall& call);
  Status PrepareDecode(const DecodeCall& call);

  /// "cuDNN 9.19.0".
  std::string LibraryVersion() const { return library_->Version(); }
  int64_t plans() const { return static_cast<int64_t>(plans_.size()); }
  int64_t workspace_bytes() const;

 private:
  // Workspace: the call's numbers (Numbers in flash_attention.cc), then cuDNN's own.
  struct Plan {
    std::unique_ptr<CudnnAttention> attention;
    DeviceBuffer workspace;
  };
  explicit FlashAttention(std::shared_ptr<CudnnLibrary> library) : library_(std::move(library)) {}
  Result<Plan*> Find(const CudnnAttentionSpec& spec, bool may_build);

  std::shared_ptr<CudnnLibrary> library_;
  std::map<CudnnAttentionSpec, Plan> plans_;
};

}  // namespace blockgtq::cuda
