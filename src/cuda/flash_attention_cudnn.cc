#include "src/cuda/flash_attention_cudnn.h"

#include <dlfcn.h>

#include <cstdlib>
#include <exception>
#include <unordered_map>
#include <utility>
#include <vector>

// The libraries are loaded by name at run time, so that programs start on machines without them. JSON is only
// needed to store graphs.
#define NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING
#define CUDNN_FRONTEND_SKIP_JSON_LIB
#include <cudnn_frontend.h>

namespace cudnn_frontend {
void* cudnn_dlhandle = nullptr;  // declared, not defined, by the headers
}

namespace blockgtq::cuda {
namespace {

namespace fe = cudnn_frontend;
using Tensor = std::shared_ptr<fe::graph::Tensor_attributes>;

enum TensorId : int64_t {
  kQueries = 1,
  kKeys,
  kValues,
  kOut,
  kLogSum,
  kRowLengths,
  kTokenLengths,
  kRowElements,
  kLogSumElements,
  kBlockTable,
};

// The frontend throws where it finds no symbol or no engine. what(): begins the message of a failure.
template <typename What, typename Call>
Status WithoutExceptions(What what, Call call) {
  const auto failed = [&](const std::string& why) {
    return Status(ErrorCode::kUnsupported, what() + ": cuDNN: " + why);
  };
  try {
    fe::error_t error = call();
    return error.is_good() ? Status::Ok() : failed(error.get_message());
  } catch (const std::exception& error) {
    return failed(error.what());
  }
}

fe::graph::Tensor_attributes Describe(const char* name, TensorId id, const std::vector<int64_t>& dims,
                                      const std::vector<int64_t>& strides, fe::DataType_t type) {
  return fe::graph::Tensor_attributes()
      .set_name(name)
      .set_uid(id)
      .set_dim(dims)
      .set_stride(strides)
      .set_data_type(type);
}

// An int32 a sequence.
fe::graph::Tensor_attributes DescribeCounts(const char* name, TensorId id, int64_t count) {
  return Describe(name, id, {count, 1, 1, 1}, {1, 1, 1, 1}, fe::DataType_t::INT32);
}

std::vector<int64_t> Strides(const CudnnStrides& s) { return {s.outer, s.head, s.row, 1}; }

}  // namespace

struct CudnnAttention::Graph {
  fe::graph::Graph graph;
};

std::string CudnnAttentionSpec::Describe() const {
  std::string text = std::to_string(batch) + " sequence" + (batch == 1 ? "" : "s") + ", " +
                     std::to_string(query_heads) + "/" + std::to_string(kv_heads) + " heads of " +
                     std::to_string(head_dim) + ", " + (lengths ? "up to " : "") + std::to_string(rows) +
                     " rows and " + std::to_string(tokens) + " tokens";
  if (causal) text += ", causal";
  if (window > 0) text += ", a window of " + std::to_string(window);
  if (pages > 0) text += ", paged";
  return text;
}

Result<std::shared_ptr<CudnnLibrary>> CudnnLibrary::Load() {
  const auto load = [](const char* name) -> Result<void*> {
    if (void* library = dlopen(name, RTLD_NOW | RTLD_GLOBAL)) return library;
    return Status(ErrorCode::kUnsupported,
                  std::string(name) + " cannot be loaded (" + dlerror() +
                      "): attention over fp16 needs cuDNN 9 and the CUDA 13 runtime; install them, or put "
                      "their folders in LD_LIBRARY_PATH");
  };
  BGTQ_ASSIGN_OR_RETURN(void* runtime, load("libcudart.so.13"));
  (void)runtime;  // the frontend loads it again by this name
  (void)setenv("CUDNN_FRONTEND_CUDART_LIB_NAME", "libcudart.so.13", 0);
  BGTQ_ASSIGN_OR_RETURN(fe::cudnn_dlhandle, load("libcudnn.so.9"));
  std::shared_ptr<CudnnLibrary> library(new CudnnLibrary);
  BGTQ_RETURN_IF_ERROR(WithoutExceptions(
      [] { return std::string("starting cuDNN"); },
      [&] {
        const cudnnStatus_t status = fe::detail::create_handle(&library->handle_);
        if (status == CUDNN_STATUS_SUCCESS) return fe::error_t{};
        return fe::error_t{fe::error_code_t::HANDLE_ERROR, fe::detail::get_error_string(status)};
      }));
  return library;
}

CudnnLibrary::~CudnnLibrary() {
  if (handle_ != nullptr) (void)fe::detail::destroy_handle(handle_);
}

std::string CudnnLibrary::Version() const {
  const size_t version = fe::detail::get_backend_version();
  return "cuDNN " + std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

CudnnAttention::CudnnAttention() : graph_(std::make_unique<Graph>()) {}
CudnnAttention::~CudnnAttention() = default;

Result<std::unique_ptr<CudnnAttention>> CudnnAttention::Build(std::shared_ptr<CudnnLibrary> library,
                                                              const CudnnAttentionSpec& s) {
  std::unique_ptr<CudnnAttention> attention(new CudnnAttention);
  attention->library_ = library;
  attention->spec_ = s;
  fe::graph::Graph& graph = attention->graph_->graph;
  constexpr auto kHalf = fe::DataType_t::HALF, kFloat = fe::DataType_t::FLOAT;
  graph.set_io_data_type(kHalf).set_intermediate_data_type(kFloat).set_compute_data_type(kFloat);

  const int64_t rows_of_keys = s.pages > 0 ? s.page_tokens : s.tokens,
                outer = s.pages > 0 ? s.pages : s.batch;
  Tensor queries = graph.tensor(
      Describe("queries", kQueries, {s.batch, s.query_heads, s.rows, s.head_dim}, Strides(s.queries), kHalf));
  Tensor keys = graph.tensor(
      Describe("keys", kKeys, {outer, s.kv_heads, rows_of_keys, s.head_dim}, Strides(s.keys), kHalf));
  Tensor values = graph.tensor(
      Describe("values", kValues, {outer, s.kv_heads, rows_of_keys, s.head_dim}, Strides(s.values), kHalf));
  fe::graph::SDPA_attributes options;
  options.set_name("attention").set_attn_scale(s.scale).set_generate_stats(s.log_sum);
  // Only the composite node has causal masks in cuDNN 9.19; for decoding both give the same kernel.
  options.set_implementation(fe::AttentionImplementation_t::COMPOSITE);
  if (s.causal) {
    options.set_diagonal_alignment(fe::DiagonalAlignment_t::BOTTOM_RIGHT).set_diagonal_band_right_bound(0);
    // The left bound counts the tokens that a row sees, its own included.
    if (s.window > 0) options.set_diagonal_band_left_bound(s.window);
  }
  if (s.lengths) {
    options.set_padding_mask(true)
        .set_seq_len_q(graph.tensor(DescribeCounts("row lengths", kRowLengths, s.batch)))
        .set_seq_len_kv(graph.tensor(DescribeCounts("token lengths", kTokenLengths, s.batch)));
  }
  if (s.pages > 0) {
    const int64_t tiles = (s.tokens + s.page_tokens - 1) / s.page_tokens;
    Tensor table = graph.tensor(Describe("block table", kBlockTable, {s.batch, 1, tiles, 1},
                                         {s.table_stride, s.table_stride, 1, 1}, fe::DataType_t::INT32));
    options.set_paged_attention_k_table(table)
        .set_paged_attention_v_table(table)
        .set_paged_attention_max_seq_len_kv(static_cast<int>(s.tokens));
  }
  Tensor row_elements, log_sum_elements;
  if (s.ragged) {
    row_elements = graph.tensor(DescribeCounts("first elements", kRowElements, s.batch + 1));
    queries->set_ragged_offset(row_elements);
  }
  auto [out, log_sum] = graph.sdpa(queries, keys, values, options);
  out->set_output(true).set_uid(kOut).set_dim({s.batch, s.query_heads, s.rows, s.head_dim});
  out->set_stride(Strides(s.out)).set_data_type(kHalf);
  if (s.ragged) out->set_ragged_offset(row_elements);
  if (s.log_sum) {
    log_sum->set_output(true).set_uid(kLogSum).set_dim({s.batch, s.query_heads, s.rows, 1});
    log_sum->set_stride(Strides(s.log_sums)).set_data_type(kFloat);
    if (s.ragged) {
      log_sum_elements = graph.tensor(DescribeCounts("first sums", kLogSumElements, s.batch + 1));
      log_sum->set_ragged_offset(log_sum_elements);
    }
  }
  const auto what = [&] { return "attention of " + s.Describe(); };
  BGTQ_RETURN_IF_ERROR(WithoutExceptions(what, [&] {
    return graph.build(library->handle(), {fe::HeurMode_t::A}, fe::BuildPlanPolicy_t::HEURISTICS_CHOICE);
  }));
  BGTQ_RETURN_IF_ERROR(
      WithoutExceptions(what, [&] { return graph.get_workspace_size(attention->workspace_bytes_); }));
  return attention;
}

Status CudnnAttention::Run(const CudnnAttentionPointers& p, void* workspace, CUstream_st* stream) const {
  const auto in = [](const void* pointer) { return const_cast<void*>(pointer); };
  std::unordered_map<int64_t, void*> pack = {
      {kQueries, in(p.queries)}, {kKeys, in(p.keys)}, {kValues, in(p.values)}, {kOut, p.out}};
  if (spec_.log_sum) pack[kLogSum] = p.log_sum;
  if (spec_.lengths) {
    pack[kRowLengths] = in(p.row_lengths);
    pack[kTokenLengths] = in(p.token_lengths);
  }
  if (spec_.ragged) {
    pack[kRowElements] = in(p.row_elements);
    if (spec_.log_sum) pack[kLogSumElements] = in(p.log_sum_elements);
  }
  if (spec_.pages > 0) pack[kBlockTable] = in(p.block_table);
  return WithoutExceptions([&] { return "attention of " + spec_.Describe(); },
                           [&] {
                             if (fe::detail::set_stream(library_->handle(), stream) != CUDNN_STATUS_SUCCESS) {
                               return fe::error_t{fe::error_code_t::HANDLE_ERROR, "the stream was refused"};
                             }
                             return graph_->graph.execute(library_->handle(), pack, workspace);
                           });
}

}  // namespace blockgtq::cuda
