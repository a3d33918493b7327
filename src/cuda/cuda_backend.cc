// Backend operations as launches on one stream.
#include "src/cuda/cuda_backend.h"

#include <fmt/format.h>

#include <charconv>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "src/core/thread_pool.h"
#include "src/cuda/attention_op.h"
#include "src/cuda/cuda_activations.h"
#include "src/cuda/device_cache_memory.h"
#include "src/cuda/elementwise.h"
#include "src/cuda/expert_mix_op.h"
#include "src/cuda/flash_attention.h"
#include "src/cuda/heads.h"
#include "src/cuda/latent_attention_op.h"
#include "src/cuda/matmul.h"
#include "src/cuda/matmul_weights.h"
#include "src/cuda/row_reader.h"
#include "src/cuda/simulated_attention_op.h"
#include "src/cuda/step_graph.h"

namespace blockgtq::cuda {
namespace {

/// Prompt tokens a pass: the products and a chunk's own attention are full from here on.
constexpr int64_t kPromptBatch = 2048;

struct CudaWeight : Weight {
  CudaWeight(DeviceBuffer buffer, int64_t rows, int64_t cols)
      : buffer(std::move(buffer)), rows(rows), cols(cols) {}
  DeviceBuffer buffer;  // matrices: fp16 [rows, cols]; vectors: fp32 [cols]
  int64_t rows, cols;
};

const CudaWeight& Cast(const Weight& weight) { return static_cast<const CudaWeight&>(weight); }
CudaActivations& Cast(Activations& x) { return static_cast<CudaActivations&>(x); }
const CudaActivations& Cast(const Activations& x) { return static_cast<const CudaActivations&>(x); }

double Gib(double bytes) { return bytes / (1 << 30); }

class CudaBackend;

struct CudaCacheBinding : CacheBinding {
  CudaCacheBinding(CudaBackend& backend, std::unique_ptr<LayerAttention> op)
      : backend(backend), op(std::move(op)) {}
  ~CudaCacheBinding() override;
  CudaBackend& backend;
  std::unique_ptr<LayerAttention> op;
};

class CudaBackend : public Backend {
 public:
  static Result<std::unique_ptr<Backend>> Create(int index, const BackendOptions& options) {
    BGTQ_ASSIGN_OR_RETURN(const int threads, ThreadCount(options.threads));
    BGTQ_ASSIGN_OR_RETURN(std::unique_ptr<Device> device, Device::Open(index));
    std::unique_ptr<CudaBackend> backend(new CudaBackend(std::move(device), options));
    BGTQ_ASSIGN_OR_RETURN(backend->uploader_, WeightUploader::Create(threads));
    return std::unique_ptr<Backend>(std::move(backend));
  }

  std::string_view name() const override { return "cuda"; }
  std::string Description() const override { return fmt::format("cuda, {}", device_->name()); }

  int64_t device_bytes() const override {
    const Result<DeviceMemoryInfo> info = ReadDeviceMemory();
    return info.ok() ? info->total - info->free : 0;
  }

  Status CheckRoom(int64_t matrix_elements, int64_t vector_elements, const std::string& what) const override {
    BGTQ_ASSIGN_OR_RETURN(const DeviceMemoryInfo info, ReadDeviceMemory());
    const int64_t room = info.free / static_cast<int64_t>(sizeof(uint16_t));  // in halves
    if (matrix_elements <= room && vector_elements <= (room - matrix_elements) / 2) return Status::Ok();
    return Status(
        ErrorCode::kOutOfMemory,
        fmt::format(
            "{}: its weights in fp16 need {:.1f} GiB of GPU memory; {:.1f} of {:.1f} are free. "
            "Use a smaller model, or --device cpu",
            what,
            Gib(2.0 * static_cast<double>(matrix_elements) + 4.0 * static_cast<double>(vector_elements)),
            Gib(static_cast<double>(info.free)), Gib(static_cast<double>(info.total))));
  }

  Result<std::unique_ptr<Weight>> LoadMatrix(const TensorView& tensor, const std::string& name) override {
    BGTQ_ASSIGN_OR_RETURN(DeviceBuffer buffer, uploader_->Matrix(tensor, name));
    return std::unique_ptr<Weight>(new CudaWeight(std::move(buffer), tensor.rows, tensor.cols));
  }
  Result<std::unique_ptr<Weight>> LoadVector(const TensorView& tensor, const std::string& name) override {
    BGTQ_ASSIGN_OR_RETURN(DeviceBuffer buffer, uploader_->Vector(tensor, name));
    return std::unique_ptr<Weight>(new CudaWeight(std::move(buffer), 1, tensor.rows * tensor.cols));
  }
  std::unique_ptr<Activations> MakeActivations(int64_t rows, int64_t cols) override {
    return std::make_unique<CudaActivations>(*device_, rows, cols);
  }

  CacheMemory& cache_memory() override { return memory_; }
  CacheKind exact_cache_kind() const override { return CacheKind::kHalf; }
  int64_t prompt_batch() const override { return kPromptBatch; }
  bool loads_late() const override { return true; }

  bool has_simulated_caches() const override { return options_.host_attention != nullptr; }
  bool has_attention_probes() const override { return true; }
  bool Has(Operation) const override { return true; }

  Result<std::unique_ptr<CacheBinding>> BindCache(KvCache& cache, const LayerRopes& ropes) override {
    if (cache.options().kind == CacheKind::kSimulated) {
      BGTQ_ASSIGN_OR_RETURN(HostSide* const host, Host());
      BGTQ_ASSIGN_OR_RETURN(std::unique_ptr<LayerAttention> simulated,
                            SimulatedAttentionOp::Create(*device_, *host, cache, ropes));
      return std::unique_ptr<CacheBinding>(new CudaCacheBinding(*this, std::move(simulated)));
    }
    if (cache.geometry().latent_dims > 0) {
      if (ropes.configs.size() > 1) {
        return Status(ErrorCode::kUnsupported, "CUDA latent attention: the layers' RoPE must be the same");
      }
      BGTQ_ASSIGN_OR_RETURN(std::unique_ptr<LayerAttention> latents,
                            LatentAttentionOp::Create(*device_, cache, ropes.configs[0]));
      return std::unique_ptr<CacheBinding>(new CudaCacheBinding(*this, std::move(latents)));
    }
    BGTQ_ASSIGN_OR_RETURN(std::unique_ptr<AttentionOp> op,
                          AttentionOp::Create(
                              *device_, [this] { return Flash(); }, cache, ropes));
    return std::unique_ptr<CacheBinding>(new CudaCacheBinding(*this, std::move(op)));
  }
  void SetPrecision(Precision precision) override {
    // A replayed step leaves the forms of activations as the last real pass made them: those of one
    // precision.
    if (precision != precision_) device_->NoteMoved();
    precision_ = precision;
  }
  Precision precision() const override { return precision_; }
  std::string_view fast_activations() const override { return "fp16"; }

  Status Step(const StepInput& input, const std::function<Status()>& forward) override {
    Status ran = RunStep(input, forward);
    if (!ran.ok()) DropErrors(input);
    return ran;
  }

  void Embed(const Weight& table, std::span<const int32_t> tokens, Activations& out) override {
    Note(Cast(out).BecomeFull());
    const int64_t rows = static_cast<int64_t>(tokens.size());
    Launch([&] {
      return LaunchEmbed(Cast(table).buffer.As<uint16_t>(), step_->batch().tokens(), rows, out.cols(),
                         Cast(out).full(), false, device_->stream());
    });
  }

  void RmsNorm(const Activations& x, const Norm& norm, int64_t rows, Activations& y) override {
    Note(Cast(y).BecomeHalves(precision_ == Precision::kFloat));
    Launch([&] {
      return LaunchRmsNorm(Cast(x).full(), Cast(*norm.weight).buffer.As<float>(), norm.epsilon, rows,
                           x.cols(), Cast(y).high(), Low(Cast(y)), nullptr, true, device_->stream());
    });
  }

  void MatMul(std::span<const Product> products, const Activations& x, const Norm* norm,
              int64_t rows) override {
    const CudaActivations& input = Input(x, norm, rows);
    items_.clear();
    for (const Product& p : products) {
      CudaActivations& y = Cast(*p.y);
      if (!p.accumulate) Note(y.BecomeFull());
      items_.push_back(Item(*p.weight, y, input.scale()));
      items_.back().bias = p.bias != nullptr ? Cast(*p.bias).buffer.As<float>() : nullptr;
      items_.back().accumulate = p.accumulate;
    }
    Products(input, rows);
  }

  Status GatedMatMul(const GatedWeights& weights, GateFunction function, const Activations& x,
                     const Norm* norm, int64_t rows, Activations& inner) override {
    CudaActivations& out = Cast(inner);
    const CudaActivations& input = Input(x, norm, rows);
    CudaActivations& second = Scratch(up_, inner.rows(), inner.cols());
    Note(out.BecomeFull());
    Note(second.BecomeFull());
    items_ = {Item(*weights.gate, out, input.scale()), Item(*weights.up, second, input.scale())};
    Products(input, rows);
    Note(out.BecomeHalves(precision_ == Precision::kFloat, kInnerScale));
    Launch([&] {
      return LaunchGate(function, out.full(), second.full(), rows * inner.cols(), out.high(), Low(out), true,
                        device_->stream());
    });
    return Status::Ok();
  }

  Status NormHeads(const Norm& norm, int64_t width, int64_t rows, Activations& x) override {
    Launch([&] {
      return LaunchRmsNorm(Cast(x).full(), Cast(*norm.weight).buffer.As<float>(), norm.epsilon,
                           rows * (x.cols() / width), width, nullptr, nullptr, Cast(x).full(), true,
                           device_->stream());
    });
    return Status::Ok();
  }

  Status NormAdd(const Activations& y, const Norm& norm, int64_t rows, Activations& x) override {
    Launch([&] {
      return LaunchRmsNormAdd(Cast(y).full(), Cast(*norm.weight).buffer.As<float>(), norm.epsilon, rows,
                              x.cols(), Cast(x).full(), true, device_->stream());
    });
    return Status::Ok();
  }

  Status Scale(float factor, int64_t rows, Activations& x) override {
    Launch([&] { return LaunchScale(Cast(x).full(), factor, rows * x.cols(), true, device_->stream()); });
    return Status::Ok();
  }

  Status MixExperts(const ExpertMix& mix, const Activations& x, int64_t rows, Activations& y) override {
    const CudaActivations& input = Cast(x);
    CudaActivations& logits = Scratch(router_, x.rows(), Cast(*mix.router).rows);
    Note(logits.BecomeFull());
    items_ = {Item(*mix.router, logits, input.scale())};
    Products(input, rows);
    gates_.clear(), ups_.clear(), downs_.clear();
    for (const GatedWeights& expert : mix.experts) {
      gates_.push_back(Cast(*expert.gate).buffer.As<uint16_t>());
      ups_.push_back(Cast(*expert.up).buffer.As<uint16_t>());
      downs_.push_back(Cast(*expert.down).buffer.As<uint16_t>());
    }
    ExpertMixCall call;
    call.logits = logits.full();
    call.gates = gates_, call.ups = ups_, call.downs = downs_;
    call.chosen = mix.chosen;
    call.renormalise = mix.renormalise;
    call.scale = mix.scale;
    call.function = mix.function;
    call.x = {input.high(), Low(input), input.scale()};
    call.rows = rows;
    call.in = x.cols();
    call.inner = mix.inner;
    call.y = Cast(y).full();
    Launch([&] { return experts_.Run(call); });
    return Status::Ok();
  }

  Status CopyHeads(const Activations& x, const HeadColumns& from, int heads, int64_t rows, Activations& y,
                   const HeadColumns& to) override {
    BGTQ_RETURN_IF_ERROR(error_);
    if (!Cast(x).is_full())
      return Status(ErrorCode::kInvalidArgument, "copying heads: of what a product has written alone");
    BGTQ_RETURN_IF_ERROR(Cast(y).BecomeFull());
    return LaunchCopyHeads(Cast(x).full(), x.cols(), from, heads, rows, Cast(y).full(), y.cols(), to,
                           device_->stream());
  }

  Status MatMulHeads(std::span<const Weight* const> weights, const Activations& x, const HeadColumns& from,
                     int64_t rows, Activations& y, const HeadColumns& to) override {
    BGTQ_RETURN_IF_ERROR(error_);
    BGTQ_RETURN_IF_ERROR(Cast(y).BecomeFull());
    head_weights_.clear();
    for (const Weight* weight : weights) head_weights_.push_back(Cast(*weight).buffer.As<uint16_t>());
    const CudaActivations& input = Cast(x);
    HeadInput columns;
    columns.full = input.is_full() ? input.full() : nullptr;
    columns.high = input.high();
    columns.low = Low(input);
    columns.scale = input.scale();
    columns.split = precision_ == Precision::kFloat;
    columns.cols = x.cols();
    return LaunchProductHeads(head_weights_, columns, from, rows, Cast(y).full(), y.cols(), to,
                              device_->stream());
  }

  Status Attention(const AttentionCall& call) override {
    BGTQ_RETURN_IF_ERROR(error_);
    CudaActivations& out = Cast(*call.out);
    LayerAttention& op = OpOf(call.cache);
    BGTQ_RETURN_IF_ERROR(op.full_output() ? out.BecomeFull() : out.BecomeHalves(false));
    const float* values = call.values != nullptr ? Cast(*call.values).full() : nullptr;
    return op.Run(call,
                  {Cast(*call.queries).full(), Cast(*call.keys).full(), values, out.high(), out.full()});
  }

  void GatherRows(const Activations& x, std::span<const int64_t> rows, Activations& y) override {
    Launch([&] { return rows_.Gather(Cast(x), rows, Cast(y)); });
  }

  /// A cache goes away.
  void Forget(const LayerAttention* op) {
    (void)device_->Synchronize();  // a failure shows in what comes next
    graphs_.Forget(op);
    if (step_ == op) step_ = nullptr;
  }

  Status ReadRow(const Activations& x, int64_t row, float* out) override {
    BGTQ_RETURN_IF_ERROR(TakeError());
    BGTQ_RETURN_IF_ERROR(rows_.Read(Cast(x), row, out));
    return TakeStepErrors();
  }
  Status ReadRows(const Activations& x, int64_t rows, float* out) override {
    if (!Cast(x).is_full()) return Backend::ReadRows(x, rows, out);
    BGTQ_RETURN_IF_ERROR(TakeError());
    BGTQ_RETURN_IF_ERROR(rows_.ReadFull(Cast(x), rows, out));
    return TakeStepErrors();
  }
  Status LargestOfRows(const Activations& x, std::span<int32_t> out) override {
    BGTQ_RETURN_IF_ERROR(TakeError());
    BGTQ_RETURN_IF_ERROR(rows_.Largest(Cast(x), out));
    return TakeStepErrors();
  }

 private:
  CudaBackend(std::unique_ptr<Device> device, const BackendOptions& options)
      : options_(options),
        device_(std::move(device)),
        memory_(*device_),
        graphs_(*device_),
        matmul_(device_->limits().processors),
        experts_(*device_),
        rows_(*device_) {}

  static LayerAttention& OpOf(CacheBinding* cache) { return *static_cast<CudaCacheBinding*>(cache)->op; }

  Status RunStep(const StepInput& input, const std::function<Status()>& forward) {
    LayerAttention& op = OpOf(input.cache);
    BGTQ_RETURN_IF_ERROR(TakeError());
    BGTQ_RETURN_IF_ERROR(op.BeginStep(input));
    BGTQ_RETURN_IF_ERROR(op.TakeErrors());  // of the step before, whose work is done by now
    for (CacheBinding* other : input.probed) BGTQ_RETURN_IF_ERROR(OpOf(other).BeginStep(input));
    step_ = &op;
    const auto launch = [&]() -> Status {
      Status ran = forward();
      Status noted = TakeError();  // what a launch noted is this step's, also if it ended early
      return ran.ok() ? noted : ran;
    };
    const bool graph = op.batch().decode() && !input.observed && input.probed.empty();
    BGTQ_RETURN_IF_ERROR(graph ? graphs_.Run({&op, op.shape()}, launch) : launch());
    BGTQ_RETURN_IF_ERROR(op.EndStep());
    if (graph) return Status::Ok();
    for (CacheBinding* other : input.probed) BGTQ_RETURN_IF_ERROR(OpOf(other).EndStep());
    BGTQ_RETURN_IF_ERROR(device_->Synchronize());
    BGTQ_RETURN_IF_ERROR(op.TakeErrors());
    for (CacheBinding* other : input.probed) BGTQ_RETURN_IF_ERROR(OpOf(other).TakeErrors());
    return Status::Ok();
  }

  /// The kernels of a step that failed may have filled error words that nobody has taken: of its probes, or
  /// of layers ahead of the operation that failed.
  void DropErrors(const StepInput& input) {
    if (!device_->Synchronize().ok()) return;  // nothing runs on this device any more
    (void)OpOf(input.cache).DropErrors();      // a failure shows in what comes next
    for (CacheBinding* other : input.probed) (void)OpOf(other).DropErrors();
  }

  /// Of the last step, whose work is done.
  Status TakeStepErrors() { return step_ != nullptr ? step_->TakeErrors() : Status::Ok(); }

  static MatMulItem Item(const Weight& weight, const CudaActivations& y, float alpha) {
    MatMulItem item;
    item.weight = Cast(weight).buffer.As<uint16_t>();
    item.y = y.full();
    item.out = Cast(weight).rows;
    item.y_stride = y.cols();
    item.alpha = alpha;
    return item;
  }
  void Products(const CudaActivations& x, int64_t rows) {
    Launch([&] { return matmul_.Run(items_, x.high(), Low(x), rows, x.cols(), true, device_->stream()); });
  }
  /// Activations by their width: memory that moves within a step would break the step's graph.
  using Kept = std::map<int64_t, std::unique_ptr<CudaActivations>>;
  /// Those of `kept` with so many columns, grown to a batch.
  CudaActivations& Scratch(Kept& kept, int64_t rows, int64_t cols) {
    std::unique_ptr<CudaActivations>& one = kept[cols];
    if (one == nullptr || one->rows() < rows) one = std::make_unique<CudaActivations>(*device_, rows, cols);
    return *one;
  }
  const CudaActivations& Normed(const Activations& x, const Norm& norm, int64_t rows) {
    CudaActivations& y = Scratch(normed_, x.rows(), x.cols());
    RmsNorm(x, norm, rows, y);
    return y;
  }

  /// What products read of norm(x), or of x: its halves, made here where x is fp32.
  const CudaActivations& Input(const Activations& x, const Norm* norm, int64_t rows) {
    if (norm != nullptr) return Normed(x, *norm, rows);
    if (!Cast(x).is_full()) return Cast(x);
    CudaActivations& y = Scratch(normed_, x.rows(), x.cols());
    Note(y.BecomeHalves(precision_ == Precision::kFloat));
    Launch([&] {
      return LaunchSplitHalves(Cast(x).full(), rows * x.cols(), y.high(), Low(y), true, device_->stream());
    });
    return y;
  }

  uint16_t* Low(const CudaActivations& x) const { return x.has_low() ? x.low() : nullptr; }

  /// The first error of operations that return nothing; the step, or the read behind them, reports it.
  void Note(Status status) {
    if (error_.ok()) error_ = std::move(status);
  }
  template <typename F>
  void Launch(F launch) {
    if (error_.ok()) error_ = launch();
  }
  Status TakeError() { return std::exchange(error_, Status::Ok()); }

  Result<FlashAttention*> Flash() {
    if (flash_ == nullptr) {
      BGTQ_ASSIGN_OR_RETURN(flash_, FlashAttention::Create());
    }
    return flash_.get();
  }

  Result<HostSide*> Host() {
    if (options_.host_attention == nullptr)
      return Status(ErrorCode::kUnsupported, "simulated caches: this backend was given no cores of the host");
    if (host_ == nullptr) {
      BGTQ_ASSIGN_OR_RETURN(std::unique_ptr<HostAttentionCores> cores,
                            options_.host_attention(options_.threads));
      host_ = std::make_unique<HostSide>(std::move(cores));
    }
    return host_.get();
  }

  BackendOptions options_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<HostSide> host_;  // once there is a simulated cache
  DeviceCacheMemory memory_;
  StepGraphs graphs_;
  cuda::MatMul matmul_;
  std::unique_ptr<WeightUploader> uploader_;
  std::unique_ptr<FlashAttention> flash_;
  Precision precision_ = Precision::kFast;
  Status error_;
  LayerAttention* step_ = nullptr;  // of the last step
  std::vector<MatMulItem> items_;
  ExpertMixOp experts_;
  std::vector<const uint16_t*> gates_, ups_, downs_;  // of a mixture's experts
  std::vector<const uint16_t*> head_weights_;         // of a product of heads
  Kept normed_, up_, router_;
  RowReader rows_;
};

CudaCacheBinding::~CudaCacheBinding() { backend.Forget(op.get()); }

}  // namespace

Result<std::unique_ptr<Backend>> CreateCudaBackend(const BackendOptions& options) {
  int index = 0;
  const std::string_view device = options.device;
  if (const size_t colon = device.find(':'); colon != std::string_view::npos) {
    const std::string_view number = device.substr(colon + 1);
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), index);
    if (error != std::errc() || end != number.data() + number.size() || index < 0) {
      return Status(ErrorCode::kInvalidArgument,
                    fmt::format("--device {}: not a device number; use cuda or cuda:N", device));
    }
  }
  Result<std::unique_ptr<Backend>> backend = CudaBackend::Create(index, options);
  if (backend.ok()) return backend;
  return Status(backend.status().code(), fmt::format("--device {}: {}; --device cpu works everywhere", device,
                                                     backend.status().message()));
}

}  // namespace blockgtq::cuda
