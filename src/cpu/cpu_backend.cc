// Backend operations as parallel loops over the kernels of this folder.
#include "src/cpu/cpu_backend.h"

#include <fmt/format.h>
#include <hwy/targets.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <map>
#include <new>
#include <vector>

#include "src/cpu/attention_op.h"
#include "src/cpu/elementwise.h"
#include "src/cpu/expert_mix.h"
#include "src/cpu/matmul.h"

namespace blockgtq::cpu {
namespace {

/// Rows of element-wise work below this many floats stay on the calling thread: a region costs about a
/// microsecond.
constexpr int64_t kParallelFloats = 8192;
/// Longer batches run no faster (the products' blocks are full) and take more memory.
constexpr int64_t kPromptBatch = 512;

class CpuWeight : public Weight {
 public:
  explicit CpuWeight(const TensorView& view) : view_(view) {}
  explicit CpuWeight(std::vector<float> vector) : vector_(std::move(vector)) {}
  const TensorView& view() const { return view_; }
  const float* vector() const { return vector_.data(); }

 private:
  TensorView view_;
  std::vector<float> vector_;
};

struct CpuCacheBinding : CacheBinding {
  CpuCacheBinding(ThreadPool& pool, KvCache& cache, const LayerRopes& ropes) : op(pool, cache, ropes) {}
  AttentionOp op;
};

const CpuWeight& Cast(const Weight& weight) { return static_cast<const CpuWeight&>(weight); }
CpuActivations& Cast(Activations& x) { return static_cast<CpuActivations&>(x); }
const CpuActivations& Cast(const Activations& x) { return static_cast<const CpuActivations&>(x); }

class CpuBackend : public Backend {
 public:
  explicit CpuBackend(int threads) : pool_(threads) {}

  std::string_view name() const override { return "cpu"; }
  std::string Description() const override {
    return fmt::format(
        "cpu, {} thread{}, {}", pool_.threads(), pool_.threads() == 1 ? "" : "s",
        hwy::TargetName(static_cast<int64_t>(hwy::SupportedTargets() & -hwy::SupportedTargets())));
  }

  int64_t device_bytes() const override { return 0; }

  Result<std::unique_ptr<Weight>> LoadMatrix(const TensorView& tensor, const std::string&) override {
    return std::unique_ptr<Weight>(new CpuWeight(tensor));
  }
  Result<std::unique_ptr<Weight>> LoadVector(const TensorView& tensor, const std::string&) override {
    std::vector<float> values(static_cast<size_t>(tensor.cols));
    DequantizeRow(tensor, 0, values.data());
    return std::unique_ptr<Weight>(new CpuWeight(std::move(values)));
  }
  std::unique_ptr<Activations> MakeActivations(int64_t rows, int64_t cols) override {
    return std::make_unique<CpuActivations>(rows, cols);
  }

  CacheMemory& cache_memory() override { return HostMemory(); }
  CacheKind exact_cache_kind() const override { return CacheKind::kFloat; }
  int64_t prompt_batch() const override { return kPromptBatch; }

  bool has_simulated_caches() const override { return true; }
  bool has_attention_probes() const override { return true; }
  bool Has(Operation) const override { return true; }
  Result<std::unique_ptr<CacheBinding>> BindCache(KvCache& cache, const LayerRopes& ropes) override {
    return std::unique_ptr<CacheBinding>(new CpuCacheBinding(pool_, cache, ropes));
  }
  void SetPrecision(Precision precision) override {
    mode_ = precision == Precision::kFloat ? ActivationMode::kFloat : ActivationMode::kInt8;
  }

  Precision precision() const override {
    return mode_ == ActivationMode::kFloat ? Precision::kFloat : Precision::kFast;
  }

  Status Step(const StepInput&, const std::function<Status()>& forward) override { return forward(); }

  std::string_view fast_activations() const override { return "int8"; }

  void Embed(const Weight& table, std::span<const int32_t> tokens, Activations& out) override {
    for (size_t i = 0; i < tokens.size(); ++i) {
      DequantizeRow(Cast(table).view(), tokens[i], Cast(out).row(static_cast<int64_t>(i)));
    }
  }

  void RmsNorm(const Activations& x, const Norm& norm, int64_t rows, Activations& y) override {
    const int64_t n = x.cols();
    ForRows(rows, n, [&](int64_t r) {
      cpu::RmsNorm(Cast(x).row(r), Cast(*norm.weight).vector(), norm.epsilon, n, Cast(y).row(r));
    });
  }

  void MatMul(std::span<const Product> products, const Activations& x, const Norm* norm,
              int64_t rows) override {
    const CpuActivations& input = norm != nullptr ? Normed(x, *norm, rows) : Cast(x);
    outputs_.clear();
    for (const Product& p : products) {
      CpuActivations& y = Cast(*p.y);
      outputs_.push_back({Cast(*p.weight).view(), p.bias != nullptr ? Cast(*p.bias).vector() : nullptr,
                          y.row(0), y.cols(), p.accumulate});
    }
    cpu::MatMul(pool_, mode_, outputs_, input.row(0), rows, x.cols(), scratch_);
  }

  Status GatedMatMul(const GatedWeights& weights, GateFunction function, const Activations& x,
                     const Norm* norm, int64_t rows, Activations& inner) override {
    CpuActivations& second = Scratch(up_[inner.cols()], inner.rows(), inner.cols());
    const std::array<Product, 2> products = {Product{weights.gate, nullptr, &inner},
                                             Product{weights.up, nullptr, &second}};
    MatMul(products, x, norm, rows);
    const int64_t n = inner.cols();
    const auto gate = function == GateFunction::kSilu ? cpu::SiluMul : cpu::GeluTanhMul;
    ForRows(rows, n, [&](int64_t r) { gate(Cast(inner).row(r), second.row(r), n); });
    return Status::Ok();
  }

  Status NormHeads(const Norm& norm, int64_t width, int64_t rows, Activations& x) override {
    const float* weight = Cast(*norm.weight).vector();
    ForRows(rows, x.cols(), [&](int64_t r) {
      float* row = Cast(x).row(r);
      for (int64_t c = 0; c < x.cols(); c += width)
        cpu::RmsNorm(row + c, weight, norm.epsilon, width, row + c);
    });
    return Status::Ok();
  }

  Status NormAdd(const Activations& y, const Norm& norm, int64_t rows, Activations& x) override {
    const CpuActivations& normed = Normed(y, norm, rows);
    const int64_t n = x.cols();
    ForRows(rows, n, [&](int64_t r) { cpu::Add(normed.row(r), n, Cast(x).row(r)); });
    return Status::Ok();
  }

  Status Scale(float factor, int64_t rows, Activations& x) override {
    for (int64_t r = 0; r < rows; ++r) {
      float* row = Cast(x).row(r);
      for (int64_t c = 0; c < x.cols(); ++c) row[c] *= factor;
    }
    return Status::Ok();
  }

  Status MixExperts(const ExpertMix& mix, const Activations& x, int64_t rows, Activations& y) override {
    const int experts = static_cast<int>(mix.experts.size());
    const int64_t n = x.cols();
    CpuActivations& logits = Scratch(router_, x.rows(), experts);
    const Product product{mix.router, nullptr, &logits};
    MatMul({&product, 1}, x, nullptr, rows);
    const auto shares = ShareRows(logits.row(0), rows, experts, mix.chosen, mix.renormalise, mix.scale);
    CpuActivations& taken = Scratch(taken_, x.rows(), n);
    CpuActivations& inner = Scratch(inner_, x.rows(), mix.inner);
    CpuActivations& result = Scratch(result_, x.rows(), n);
    for (int e = 0; e < experts; ++e) {  // in this order whatever the batch: a row's sum is always the same
      const std::vector<ExpertShare>& share = shares[static_cast<size_t>(e)];
      const GatedWeights& expert = mix.experts[static_cast<size_t>(e)];
      const auto count = static_cast<int64_t>(share.size());
      if (count == 0) continue;
      for (int64_t i = 0; i < count; ++i)
        std::memcpy(taken.row(i), Cast(x).row(share[static_cast<size_t>(i)].row), sizeof(float) * n);
      BGTQ_RETURN_IF_ERROR(GatedMatMul(expert, mix.function, taken, nullptr, count, inner));
      const Product down{expert.down, nullptr, &result};
      MatMul({&down, 1}, inner, nullptr, count);
      for (int64_t i = 0; i < count; ++i) {
        const ExpertShare& s = share[static_cast<size_t>(i)];
        float* to = Cast(y).row(s.row);
        for (int64_t c = 0; c < n; ++c) to[c] += s.weight * result.row(i)[c];
      }
    }
    return Status::Ok();
  }

  Status CopyHeads(const Activations& x, const HeadColumns& from, int heads, int64_t rows, Activations& y,
                   const HeadColumns& to) override {
    for (int64_t r = 0; r < rows; ++r) {
      for (int h = 0; h < heads; ++h) {
        std::memcpy(Cast(y).row(r) + h * to.stride + to.first, Cast(x).row(r) + h * from.stride + from.first,
                    sizeof(float) * static_cast<size_t>(to.width));
      }
    }
    return Status::Ok();
  }

  Status MatMulHeads(std::span<const Weight* const> weights, const Activations& x, const HeadColumns& from,
                     int64_t rows, Activations& y, const HeadColumns& to) override {
    for (size_t h = 0; h < weights.size(); ++h) {
      const auto head = static_cast<int64_t>(h);
      const MatMulOutput output{Cast(*weights[h]).view(), nullptr,
                                Cast(y).row(0) + head * to.stride + to.first, y.cols(), false};
      cpu::MatMul(pool_, mode_, {&output, 1}, Cast(x).row(0) + head * from.stride + from.first, rows,
                  x.cols(), scratch_);
    }
    return Status::Ok();
  }

  Status Attention(const AttentionCall& call) override {
    return static_cast<CpuCacheBinding*>(call.cache)
        ->op.Run(call, Cast(*call.queries), Cast(*call.keys),
                 call.values != nullptr ? &Cast(*call.values) : nullptr, Cast(*call.out));
  }

  void GatherRows(const Activations& x, std::span<const int64_t> rows, Activations& y) override {
    for (size_t i = 0; i < rows.size(); ++i) {
      std::memcpy(Cast(y).row(static_cast<int64_t>(i)), Cast(x).row(rows[i]), sizeof(float) * x.cols());
    }
  }
  Status ReadRow(const Activations& x, int64_t row, float* out) override {
    std::memcpy(out, Cast(x).row(row), sizeof(float) * x.cols());
    return Status::Ok();
  }
  Status LargestOfRows(const Activations& x, std::span<int32_t> out) override {
    ForRows(static_cast<int64_t>(out.size()), x.cols(),
            [&](int64_t r) { out[static_cast<size_t>(r)] = LargestIndex(Cast(x).row(r), x.cols()); });
    return Status::Ok();
  }

 private:
  template <typename F>
  void ForRows(int64_t rows, int64_t n, F body) {
    if (rows * n < kParallelFloats) {
      for (int64_t r = 0; r < rows; ++r) body(r);
    } else {
      pool_.Run(rows, [&](int64_t r, int) { body(r); });
    }
  }

  /// `kept` grown to a batch.
  static CpuActivations& Scratch(std::unique_ptr<CpuActivations>& kept, int64_t rows, int64_t cols) {
    if (kept == nullptr || kept->rows() < rows || kept->cols() != cols) {
      kept = std::make_unique<CpuActivations>(rows, cols);
    }
    return *kept;
  }
  const CpuActivations& Normed(const Activations& x, const Norm& norm, int64_t rows) {
    CpuActivations& y = Scratch(normed_, x.rows(), x.cols());
    RmsNorm(x, norm, rows, y);
    return y;
  }

  ThreadPool pool_;
  ActivationMode mode_ = ActivationMode::kInt8;
  MatMulScratch scratch_;
  std::vector<MatMulOutput> outputs_;
  std::unique_ptr<CpuActivations> normed_;
  std::map<int64_t, std::unique_ptr<CpuActivations>> up_;  // by columns: experts and dense layers differ
  std::unique_ptr<CpuActivations> router_, taken_, inner_, result_;  // of a mixture of experts
};

}  // namespace

CpuActivations::CpuActivations(int64_t rows, int64_t cols)
    : Activations(rows, cols), data_(nullptr, Free(true)) {
  const size_t bytes = (sizeof(float) * static_cast<size_t>(rows * cols) + 63) / 64 * 64;
  data_.reset(static_cast<float*>(::operator new[](bytes > 0 ? bytes : 64, std::align_val_t{64})));
}

void CpuActivations::Free::operator()(float* p) const {
  if (owned) ::operator delete[](p, std::align_val_t{64});
}

Result<std::unique_ptr<Backend>> CreateCpuBackend(const BackendOptions& options) {
  BGTQ_ASSIGN_OR_RETURN(const int threads, ThreadCount(options.threads));
  return std::unique_ptr<Backend>(new CpuBackend(threads));
}

}  // namespace blockgtq::cpu
