// Chooses between the own kernel and cuBLASLt, and keeps cuBLASLt's choice of algorithm for each shape.
#include "src/cuda/matmul.h"

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "src/cuda/device_memory.h"
#include "src/cuda/gemv.h"
#include "src/cuda/launch.cuh"
#include "src/cuda/matmul_library.h"

namespace blockgtq::cuda {
namespace {

constexpr int64_t kWorkspaceBytes = int64_t{32} << 20;  // what NVIDIA advises for Hopper
constexpr uint32_t kAlignment = 16;                     // that every pointer has

Status LibraryStatus(const CublasLt& lt, cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return Status::Ok();
  const ErrorCode code =
      status == CUBLAS_STATUS_ALLOC_FAILED ? ErrorCode::kOutOfMemory : ErrorCode::kUnsupported;
  return Status(code, std::string("cuBLASLt: ") + what + ": " + lt.status_string(status));
}

// An object of cuBLASLt that is destroyed with its owner.
template <typename Handle>
class Owned {
 public:
  explicit Owned(cublasStatus_t (*destroy)(Handle)) : destroy_(destroy) {}
  Owned(Owned&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)), destroy_(other.destroy_) {}
  ~Owned() {
    if (handle_) (void)destroy_(handle_);
  }
  Handle get() const { return handle_; }
  Handle* out() { return &handle_; }

 private:
  Handle handle_ = nullptr;
  cublasStatus_t (*destroy_)(Handle);
};

// cuBLASLt's matrices are column-major, so it is asked for y' = W' ' x': [out, rows] = [in, out]' [in, rows].
struct LibraryShape {
  int64_t out, rows, in, y_stride;
  bool has_bias;
  bool operator<(const LibraryShape& other) const {
    return std::tie(out, rows, in, y_stride, has_bias) <
           std::tie(other.out, other.rows, other.in, other.y_stride, other.has_bias);
  }
};

struct LibraryPlan {
  explicit LibraryPlan(const CublasLt& lt)
      : product(lt.desc_destroy), weight(lt.layout_destroy), x(lt.layout_destroy), y(lt.layout_destroy) {}
  Owned<cublasLtMatmulDesc_t> product;
  Owned<cublasLtMatrixLayout_t> weight, x, y;
  cublasLtMatmulAlgo_t algorithm{};
};

template <typename T>
Status SetProduct(const CublasLt& lt, const LibraryPlan& plan, cublasLtMatmulDescAttributes_t attribute,
                  const T& value) {
  return LibraryStatus(lt, lt.desc_set(plan.product.get(), attribute, &value, sizeof(value)),
                       "describing a product");
}

Status ChooseAlgorithm(const CublasLt& lt, cublasLtHandle_t handle, const LibraryShape& shape,
                       LibraryPlan& plan) {
  Owned<cublasLtMatmulPreference_t> preference(lt.preference_destroy);
  BGTQ_RETURN_IF_ERROR(LibraryStatus(lt, lt.preference_create(preference.out()), "making a preference"));
  const uint64_t workspace = kWorkspaceBytes;
  bool set = lt.preference_set(preference.get(), CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                               sizeof(workspace)) == CUBLAS_STATUS_SUCCESS;
  for (auto attribute :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    set = set && lt.preference_set(preference.get(), attribute, &kAlignment, sizeof(kAlignment)) ==
                     CUBLAS_STATUS_SUCCESS;
  }
  if (!set) return Status(ErrorCode::kUnsupported, "cuBLASLt: it refuses the workspace or the alignment");
  cublasLtMatmulHeuristicResult_t found{};
  int count = 0;
  const cublasStatus_t status = lt.heuristic(handle, plan.product.get(), plan.weight.get(), plan.x.get(),
                                             plan.y.get(), plan.y.get(), preference.get(), 1, &found, &count);
  if (status != CUBLAS_STATUS_SUCCESS || count == 0) {
    return Status(ErrorCode::kUnsupported, "cuBLASLt: it has no algorithm for [" +
                                               std::to_string(shape.rows) + ", " + std::to_string(shape.in) +
                                               "] x [" + std::to_string(shape.in) + ", " +
                                               std::to_string(shape.out) + "]: " + lt.status_string(status));
  }
  plan.algorithm = found.algo;
  return Status::Ok();
}

Result<LibraryPlan> MakePlan(const CublasLt& lt, cublasLtHandle_t handle, const LibraryShape& shape) {
  LibraryPlan plan(lt);
  BGTQ_RETURN_IF_ERROR(LibraryStatus(lt, lt.desc_create(plan.product.out(), CUBLAS_COMPUTE_32F, CUDA_R_32F),
                                     "making a product"));
  BGTQ_RETURN_IF_ERROR(SetProduct(lt, plan, CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T));
  if (shape.has_bias) {
    BGTQ_RETURN_IF_ERROR(SetProduct(lt, plan, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS));
    BGTQ_RETURN_IF_ERROR(SetProduct(lt, plan, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, CUDA_R_32F));
  }
  const auto layout = [&](Owned<cublasLtMatrixLayout_t>& out, cudaDataType_t type, int64_t rows, int64_t cols,
                          int64_t stride) {
    return LibraryStatus(
        lt,
        lt.layout_create(out.out(), type, static_cast<uint64_t>(rows), static_cast<uint64_t>(cols), stride),
        "describing a matrix");
  };
  BGTQ_RETURN_IF_ERROR(layout(plan.weight, CUDA_R_16F, shape.in, shape.out, shape.in));
  BGTQ_RETURN_IF_ERROR(layout(plan.x, CUDA_R_16F, shape.in, shape.rows, shape.in));
  BGTQ_RETURN_IF_ERROR(layout(plan.y, CUDA_R_32F, shape.out, shape.rows, shape.y_stride));
  BGTQ_RETURN_IF_ERROR(ChooseAlgorithm(lt, handle, shape, plan));
  return plan;
}

Status CheckShapes(std::span<const MatMulItem> items, int64_t rows, int64_t in) {
  if (items.empty() || rows < 1 || in < 1) {
    return Status(ErrorCode::kInvalidArgument, "CUDA matrix product: nothing to multiply");
  }
  if (in % 8 != 0) {
    return Status(ErrorCode::kUnsupported, "CUDA matrix product: an input of " + std::to_string(in) +
                                               " columns; the kernels take multiples of 8");
  }
  return Status::Ok();
}

}  // namespace

struct MatMul::Library {
  const CublasLt* lt = nullptr;
  Owned<cublasLtHandle_t> handle;
  DeviceBuffer workspace;
  std::map<LibraryShape, LibraryPlan> plans;

  explicit Library(const CublasLt& functions) : lt(&functions), handle(functions.destroy) {}

  // y = alpha W x (+ bias) + beta y
  Status Product(const MatMulItem& item, const uint16_t* x, int64_t rows, int64_t in, float alpha, float beta,
                 const float* bias, cudaStream_t stream) {
    const LibraryShape shape = {item.out, rows, in, item.y_stride, bias != nullptr};
    auto plan = plans.find(shape);
    if (plan == plans.end()) {
      BGTQ_ASSIGN_OR_RETURN(LibraryPlan made, MakePlan(*lt, handle.get(), shape));
      plan = plans.emplace(shape, std::move(made)).first;
    }
    const LibraryPlan& p = plan->second;
    if (bias) BGTQ_RETURN_IF_ERROR(SetProduct(*lt, p, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias));
    return LibraryStatus(*lt,
                         lt->matmul(handle.get(), p.product.get(), &alpha, item.weight, p.weight.get(), x,
                                    p.x.get(), &beta, item.y, p.y.get(), item.y, p.y.get(), &p.algorithm,
                                    workspace.data(), static_cast<size_t>(workspace.bytes()), stream),
                         "a product");
  }
};

MatMul::MatMul(int processors) : processors_(processors) {}
MatMul::~MatMul() = default;
MatMul::MatMul(MatMul&&) noexcept = default;
MatMul& MatMul::operator=(MatMul&&) noexcept = default;

bool MatMul::NeedsLibrary(int64_t rows, bool has_low) {
  return rows > (has_low ? kGemvMaxRows / 2 : kGemvMaxRows);
}

Status MatMul::Prepare() {
  if (library_) return Status::Ok();
  BGTQ_ASSIGN_OR_RETURN(const CublasLt* lt, LoadCublasLt());
  auto library = std::make_unique<Library>(*lt);
  BGTQ_RETURN_IF_ERROR(LibraryStatus(*lt, lt->create(library->handle.out()), "starting"));
  BGTQ_ASSIGN_OR_RETURN(library->workspace,
                        DeviceBuffer::Allocate(kWorkspaceBytes, "the workspace of matrix products"));
  library_ = std::move(library);
  return Status::Ok();
}

Status MatMul::RunLibrary(std::span<const MatMulItem> items, const uint16_t* x_hi, const uint16_t* x_lo,
                          int64_t rows, int64_t in, CUstream_st* stream) {
  BGTQ_RETURN_IF_ERROR(CheckShapes(items, rows, in));
  BGTQ_RETURN_IF_ERROR(Prepare());
  for (const MatMulItem& item : items) {
    BGTQ_RETURN_IF_ERROR(library_->Product(item, x_hi, rows, in, item.alpha, item.accumulate ? 1.0f : 0.0f,
                                           item.bias, stream));
    if (!x_lo) continue;
    BGTQ_RETURN_IF_ERROR(
        library_->Product(item, x_lo, rows, in, item.alpha / kLowHalfScale, 1.0f, nullptr, stream));
  }
  return Status::Ok();
}

Status MatMul::Run(std::span<const MatMulItem> items, const uint16_t* x_hi, const uint16_t* x_lo,
                   int64_t rows, int64_t in, bool early, CUstream_st* stream) {
  BGTQ_RETURN_IF_ERROR(CheckShapes(items, rows, in));
  const bool has_low = x_lo != nullptr;
  if (NeedsLibrary(rows, has_low)) return RunLibrary(items, x_hi, x_lo, rows, in, stream);
  for (size_t first = 0; first < items.size(); first += kGemvMaxItems) {
    GemvCall call;
    call.items = items.subspan(first, std::min<size_t>(items.size() - first, kGemvMaxItems));
    call.rows = rows;
    call.in = in;
    call.x_hi = x_hi;
    call.x_lo = x_lo;
    BGTQ_RETURN_IF_ERROR(LaunchGemv(call, ChooseGemvTiles(call.items, rows, has_low, in, processors_),
                                    processors_, early || first > 0, stream));
  }
  return Status::Ok();
}

}  // namespace blockgtq::cuda
