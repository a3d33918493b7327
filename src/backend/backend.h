// The backend interface: where weights and activations live and who computes on them. An architecture
// (models/) is written once against these operations and runs on every backend.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "blockgtq/status.h"
#include "src/cache/cache_memory.h"
#include "src/cache/kv_cache.h"
#include "src/core/rope.h"
#include "src/core/tensor_type.h"

namespace blockgtq {

/// How activations enter a matrix product.
enum class Precision {
  kFast,   // the backend's fast way (the default): int8 with one scale a 32 elements on CPUs, fp16 on GPUs
  kFloat,  // float32, or as close to it as the backend comes; scoring uses it so that a cache is judged
           // without the noise of rounded activations
};

/// A matrix of activations [rows, cols] on a backend; element type and layout are the backend's own.
class Activations {
 public:
  virtual ~Activations() = default;
  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }

 protected:
  Activations(int64_t rows, int64_t cols) : rows_(rows), cols_(cols) {}
  int64_t rows_, cols_;
};

/// A weight matrix or vector that a backend has taken over (a view of the mapped file, or a copy on a
/// device).
class Weight {
 public:
  virtual ~Weight() = default;
};

/// One product y = W x (+ bias) (+ y).
struct Product {
  const Weight* weight = nullptr;
  const Weight* bias = nullptr;  // may be null
  Activations* y = nullptr;
  bool accumulate = false;
};

/// RMS norm: y = x / sqrt(mean(x^2) + epsilon) * weight, of every row.
struct Norm {
  const Weight* weight = nullptr;  // [cols]
  float epsilon = 0;
};

/// What the gate of a feed-forward goes through.
enum class GateFunction {
  kSilu,
  kGeluTanh,  // 0.5 z (1 + tanh(sqrt(2 / pi) (z + 0.044715 z^3)))
};

/// A gated feed-forward: y = D (f(G z) * (U z)).
struct GatedWeights {
  const Weight* gate = nullptr;  // [inner, cols]
  const Weight* up = nullptr;
  const Weight* down = nullptr;  // [cols, inner]
};

/// A mixture of gated feed-forwards: each row goes through the few experts that a router chooses for it.
struct ExpertMix {
  const Weight* router = nullptr;  // [experts, cols]
  std::span<const GatedWeights> experts;
  int64_t inner = 0;         // rows of every gate
  int chosen = 0;            // experts a row: those of the largest router probabilities (softmax over all)
  bool renormalise = false;  // the chosen probabilities are divided by their sum
  float scale = 1;           // of every weight
  GateFunction function = GateFunction::kSilu;
};

/// What some families need and a backend may lack. An architecture asks for all that it needs before it takes
/// a weight (RequireOperations).
enum class Operation {
  kNormHeads,        // Backend::NormHeads
  kNormAdd,          // Backend::NormAdd
  kUnnormedInput,    // GatedMatMul without a norm
  kGeluGate,         // GateFunction::kGeluTanh
  kScaleRows,        // Backend::Scale
  kExperts,          // Backend::MixExperts
  kSlidingWindow,    // AttentionCall::window
  kRopesByLayer,     // LayerRopes with more than one RopeConfig
  kLatentAttention,  // caches of latents (CacheGeometry::latent_dims), CopyHeads, MatMulHeads
};
/// "sliding-window attention": for messages.
std::string_view OperationName(Operation operation);

/// The columns of activations that belong to heads: head h has [h * stride + first, h * stride + first +
/// width).
struct HeadColumns {
  int64_t stride = 0, first = 0, width = 0;
};

/// Consecutive rows of a batch that continue one sequence.
struct BatchSlice {
  SequenceId sequence = 0;
  int64_t first_row = 0;  // in the batch's activations
  int64_t count = 0;
  int64_t first_position = 0;  // of row first_row; equals the sequence's length before the batch
  /// Every row attends as if it were decoded alone (cli.md, --strict). Otherwise a slice of more than one row
  /// attends to its own rows in fp16. A slice of one row is a decoded token, which is the same either way.
  bool strict = false;
};

/// A cache as one backend's attention sees it: constants made of the plan, scratch.
class CacheBinding {
 public:
  virtual ~CacheBinding() = default;
};

/// One pass of a model over new tokens.
struct StepInput {
  std::span<const int32_t> tokens;     // [rows]
  std::span<const BatchSlice> slices;  // cover the rows in order
  CacheBinding* cache = nullptr;
  bool observed = false;  // an AttentionObserver looks on
  /// Caches beside `cache` that the pass attends to as well (models/model.h, AttentionProbe): they hold the
  /// slices' sequences at the same lengths.
  std::span<CacheBinding* const> probed = {};
};

/// Sees the vectors that enter attention, before RoPE, in block order: for calibration.
class AttentionObserver {
 public:
  virtual ~AttentionObserver() = default;
  /// queries [rows, heads, head_dim], keys and values [rows, kv_heads, head_dim], host memory, valid during
  /// the call. In a cache of latents, values are the keys.
  virtual void Observe(int layer, int64_t rows, const float* queries, const float* keys,
                       const float* values) = 0;
};

struct AttentionCall {
  CacheBinding* cache = nullptr;
  int layer = 0;
  int heads = 0;                         // query heads
  float scale = 1;                       // of the logits
  int64_t window = 0;                    // a token sees itself and the window - 1 before it; 0: all
  const Activations* queries = nullptr;  // [rows, heads * head_dim], before RoPE, the model's pairing
  const Activations* keys = nullptr;     // [rows, kv_heads * head_dim]
  const Activations* values = nullptr;   // null in a cache of latents
  /// [rows, heads * head_dim]. In a cache of latents the last latent_dims of each head are the output, those
  /// before them mean nothing.
  Activations* out = nullptr;
  std::span<const BatchSlice> slices;
  AttentionObserver* observer = nullptr;  // may be null
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string_view name() const = 0;
  /// One line for logs: what it runs on.
  virtual std::string Description() const = 0;
  /// Bytes of the device's own memory that are taken now; 0 for the host.
  virtual int64_t device_bytes() const = 0;

  /// Whether weights of so many elements find room, asked before the first is taken. what: begins the error's
  /// text. Errors: kOutOfMemory, which states bytes wanted and free.
  virtual Status CheckRoom(int64_t matrix_elements, int64_t vector_elements, const std::string& what) const {
    (void)matrix_elements, (void)vector_elements, (void)what;
    return Status::Ok();  // weights stay in the mapped file
  }
  /// The tensor's bytes must outlive the weight. name: for messages. Errors: kOutOfMemory, kUnsupported.
  virtual Result<std::unique_ptr<Weight>> LoadMatrix(const TensorView& tensor, const std::string& name) = 0;
  /// A vector [cols] (rows = 1), kept as float32.
  virtual Result<std::unique_ptr<Weight>> LoadVector(const TensorView& tensor, const std::string& name) = 0;
  virtual std::unique_ptr<Activations> MakeActivations(int64_t rows, int64_t cols) = 0;

  /// Where this backend's caches must have their bytes; those of kind kSimulated have them in HostMemory().
  virtual CacheMemory& cache_memory() = 0;
  /// The most exact cache that this backend has: what calibration runs on.
  virtual CacheKind exact_cache_kind() const = 0;
  /// Tokens of a prompt that it likes to have in one pass.
  virtual int64_t prompt_batch() const = 0;
  /// Whether it loads kernels and libraries, or builds plans, when a pass first needs them.
  virtual bool loads_late() const { return false; }

  /// Whether attention over caches of kind kSimulated is there: on the host's cores, wherever the rest is.
  virtual bool has_simulated_caches() const { return false; }
  /// Whether a pass may attend to caches beside the one that it was begun with (models/model.h,
  /// AttentionProbe).
  virtual bool has_attention_probes() const { return false; }

  /// Operations beyond those that every backend has.
  virtual bool Has(Operation) const { return false; }

  /// Prepares attention over `cache`, which must outlive the binding; `ropes` is how positions rotate.
  /// Errors: kUnsupported when this backend has no kernel for the plan (names what).
  virtual Result<std::unique_ptr<CacheBinding>> BindCache(KvCache& cache, const LayerRopes& ropes) = 0;
  virtual void SetPrecision(Precision precision) = 0;
  virtual Precision precision() const = 0;
  /// What Precision::kFast rounds activations to: "int8", "fp16".
  virtual std::string_view fast_activations() const = 0;

  /// Runs `forward`, one pass of a model over `input`: the backend's operations on the batch's activations
  /// happen within it. A backend may run a pass of the same shape without calling `forward` again. Everything
  /// has been reserved; the caller commits afterwards. Errors: those of forward.
  virtual Status Step(const StepInput& input, const std::function<Status()>& forward) = 0;

  // Operations on the first `rows` rows of their activations.
  virtual void Embed(const Weight& table, std::span<const int32_t> tokens, Activations& out) = 0;
  virtual void RmsNorm(const Activations& x, const Norm& norm, int64_t rows, Activations& y) = 0;
  /// All products share the input x, or norm(x) where `norm` is not null.
  virtual void MatMul(std::span<const Product> products, const Activations& x, const Norm* norm,
                      int64_t rows) = 0;
  /// inner = f(G z) * (U z), z = norm(x), or x where `norm` is null: a gated feed-forward's first half.
  /// Errors: kUnsupported where Has says no.
  virtual Status GatedMatMul(const GatedWeights& weights, GateFunction function, const Activations& x,
                             const Norm* norm, int64_t rows, Activations& inner) = 0;
  // Of the operations below, those that Has denies return kUnsupported.
  /// Every `width` consecutive columns of x are normed on their own: a head, or a whole projection.
  /// norm.weight: [width], which divides x's columns.
  virtual Status NormHeads(const Norm& norm, int64_t width, int64_t rows, Activations& x);
  /// x += norm(y).
  virtual Status NormAdd(const Activations& y, const Norm& norm, int64_t rows, Activations& x);
  /// x *= factor.
  virtual Status Scale(float factor, int64_t rows, Activations& x);
  /// y += the mixture's output for x. Of equal router probabilities the lower expert is chosen.
  virtual Status MixExperts(const ExpertMix& mix, const Activations& x, int64_t rows, Activations& y);
  /// Copies the columns `from` of x to the columns `to` of y, for every head. from.width == to.width.
  virtual Status CopyHeads(const Activations& x, const HeadColumns& from, int heads, int64_t rows,
                           Activations& y, const HeadColumns& to);
  /// y_h = W_h x_h: weights[h] [to.width, from.width] takes head h's columns `from` of x to its columns `to`
  /// of y.
  virtual Status MatMulHeads(std::span<const Weight* const> weights, const Activations& x,
                             const HeadColumns& from, int64_t rows, Activations& y, const HeadColumns& to);
  /// Rotates queries and keys, stores keys and values in the cache, attends. Every sequence's new
  /// tokens must have been reserved. The caller commits after the last layer, with CodedEndAfter. Errors:
  /// kNonFinite naming layer and position when a query, key or value is NaN or infinite; the sequence is then
  /// unusable.
  virtual Status Attention(const AttentionCall& call) = 0;
  /// y[i] = x[rows[i]].
  virtual void GatherRows(const Activations& x, std::span<const int64_t> rows, Activations& y) = 0;
  /// Widens row `row` of x to host floats [cols]. Errors: what went wrong on a device since the last Step.
  virtual Status ReadRow(const Activations& x, int64_t row, float* out) = 0;
  /// The first `rows` rows, to [rows, cols]. Errors: as ReadRow.
  virtual Status ReadRows(const Activations& x, int64_t rows, float* out);
  /// out[r] = the column of the largest element of row r, the lowest of equals; -1 when the row has a NaN or
  /// +infinity, or nothing above -infinity. Errors: as ReadRow.
  virtual Status LargestOfRows(const Activations& x, std::span<int32_t> out) = 0;
};

/// Errors: kUnsupported naming the backend and the operations of `needed` that it lacks. `what`: whose
/// need it is, for the message.
Status RequireOperations(const Backend& backend, std::span<const Operation> needed, std::string_view what);

/// Where a sequence's codes reach once a batch slice is stored in every layer.
int64_t CodedEndAfter(const KvCache& cache, const BatchSlice& slice);

class HostAttentionCores;

struct BackendOptions {
  std::string device = "cpu";  // "cpu", "cuda", "cuda:N"
  int threads = 0;             // of the host; 0: one a core
  /// How a backend elsewhere gets the host's cores (backend/host_attention.h) for simulated caches, which it
  /// does not have without; the registry of backends sets it.
  Result<std::unique_ptr<HostAttentionCores>> (*host_attention)(int threads) = nullptr;
};
/// A line of the backend registry (engine/backends.cc, the one place that knows every backend).
struct BackendInfo {
  std::string_view name;
  Result<std::unique_ptr<Backend>> (*create)(const BackendOptions& options);
};

}  // namespace blockgtq
