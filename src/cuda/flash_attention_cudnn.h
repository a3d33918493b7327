// One cuDNN attention graph of fixed shapes: built once, run many times. flash_attention.h decides which
// graphs there are; this file is the one that knows cuDNN.
#pragma once

#include <compare>
#include <cstdint>
#include <memory>
#include <string>

#include "blockgtq/status.h"

struct CUstream_st;
struct cudnnContext;

namespace blockgtq::cuda {

/// Strides in elements; the head dim is contiguous. outer: of a sequence, or of a page.
struct CudnnStrides {
  int64_t outer = 0, head = 0, row = 0;
  auto operator<=>(const CudnnStrides&) const = default;  // NOLINT(modernize-use-nullptr): sees a 0 in it
};

/// softmax(scale Q K^T) V in fp16 with fp32 sums.
struct CudnnAttentionSpec {
  int64_t batch = 0, query_heads = 0, kv_heads = 0, head_dim = 0;
  int64_t rows = 0, tokens = 0;  // of queries, of keys; upper bounds with `lengths`
  CudnnStrides queries, keys, values, out;
  float scale = 1;
  bool causal = false;   // row i of r sees the first tokens - r + i + 1 keys
  int64_t window = 0;    // > 0, with causal: of these no more than the last `window`
  bool lengths = false;  // numbers of rows and tokens of each sequence are in device memory
  bool ragged = false;   // rows of queries, out and log_sum are packed; first elements in device memory
  bool log_sum = false;  // also writes the natural logarithm of each row's sum of exponentials
  CudnnStrides log_sums;
  // Keys and values in pages (pages > 0): tile t of sequence b is page block_table[b * table_stride + t].
  // Their outer stride is then from page to page.
  int64_t pages = 0, page_tokens = 0, table_stride = 0;
  auto operator<=>(const CudnnAttentionSpec&) const = default;  // NOLINT(modernize-use-nullptr)
  /// For messages: "8 sequences, 32/8 heads of 128, 1 row, up to 4096 tokens, paged".
  std::string Describe() const;
};

/// Device memory of one call. Pointers the spec does not ask for are ignored.
struct CudnnAttentionPointers {
  const void *queries = nullptr, *keys = nullptr, *values = nullptr;
  void *out = nullptr, *log_sum = nullptr;
  const int32_t *row_lengths = nullptr, *token_lengths = nullptr;      // [batch]
  const int32_t *row_elements = nullptr, *log_sum_elements = nullptr;  // [batch + 1]
  const int32_t* block_table = nullptr;
};

/// cuDNN, loaded, with a handle. One thread at a time.
class CudnnLibrary {
 public:
  /// Errors: kUnsupported when libcudnn.so.9 or libcudart.so.13 cannot be loaded, or no device answers.
  static Result<std::shared_ptr<CudnnLibrary>> Load();
  ~CudnnLibrary();
  CudnnLibrary(const CudnnLibrary&) = delete;
  CudnnLibrary& operator=(const CudnnLibrary&) = delete;
  cudnnContext* handle() const { return handle_; }
  /// "cuDNN 9.19.0".
  std::string Version() const;

 private:
  CudnnLibrary() = default;
  cudnnContext* handle_ = nullptr;
};

class CudnnAttention {
 public:
  /// Takes from milliseconds to a second (cuDNN may compile a kernel); not while a stream is captured.
  /// Errors: kUnsupported naming the shape when cuDNN has no kernel for it.
  static Result<std::unique_ptr<CudnnAttention>> Build(std::shared_ptr<CudnnLibrary> library,
                                                       const CudnnAttentionSpec& spec);
  ~CudnnAttention();
  int64_t workspace_bytes() const { return workspace_bytes_; }
  /// Launches on `stream`, which may be capturing. workspace: workspace_bytes() of device memory.
  Status Run(const CudnnAttentionPointers& pointers, void* workspace, CUstream_st* stream) const;

 private:
  CudnnAttention();
  struct Graph;
  std::shared_ptr<CudnnLibrary> library_;
  CudnnAttentionSpec spec_;
  std::unique_ptr<Graph> graph_;
  int64_t workspace_bytes_ = 0;
};

}  // namespace blockgtq::cuda
