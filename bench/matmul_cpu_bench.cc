// Matrix products on the CPU: bytes of weights a second at one token, multiply-adds a second on a long
// prompt, and the same shapes through OpenBLAS on weights widened to float32 (when it was found at
// configuration).
//
// Threads: BGTQ_BENCH_THREADS, by default all cores. Weights of one benchmark rotate through copies larger
// than the caches where the point is memory speed.
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "src/core/half.h"
#include "src/core/thread_pool.h"
#include "src/cpu/matmul.h"

#if BGTQ_HAVE_OPENBLAS
#include <cblas.h>
#endif

namespace blockgtq::cpu {
namespace {

int BenchThreads() {
  const char* text = std::getenv("BGTQ_BENCH_THREADS");
  const int threads =
      text != nullptr ? std::atoi(text) : static_cast<int>(std::thread::hardware_concurrency());
  return threads > 0 ? threads : 1;
}

ThreadPool& Pool() {
  static ThreadPool pool(BenchThreads());
  return pool;
}

// Random codes with halves that are finite and small wherever a type may keep a scale.
struct Matrix {
  std::vector<std::byte> bytes;
  TensorView view;

  Matrix(TensorType type, int64_t rows, int64_t cols) : view{type, nullptr, rows, cols} {
    const TensorTypeInfo& info = GetTensorType(type);
    bytes.resize(static_cast<size_t>(rows * view.row_bytes()));
    std::mt19937 random(1);
    const uint16_t scale = FloatToHalf(0.01f);
    for (size_t i = 0; i + 1 < bytes.size(); i += 2) {
      const uint16_t bits = info.block_elements == 1 ? scale : static_cast<uint16_t>(random());
      std::memcpy(&bytes[i], &bits, 2);
    }
    if (info.block_elements == 1) {
      view.data = bytes.data();
      return;
    }
    for (size_t block = 0; block < bytes.size(); block += static_cast<size_t>(info.block_bytes)) {
      std::memcpy(&bytes[block], &scale, 2);
      std::memcpy(&bytes[block + 2], &scale, 2);
      if (type == TensorType::kQ6_K) std::memcpy(&bytes[block + 208], &scale, 2);
    }
    view.data = bytes.data();
  }
};

std::vector<float> Activations(int64_t count) {
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<size_t>(count));
  for (float& value : x) value = normal(random);
  return x;
}

void Report(benchmark::State& state, double macs, double weight_bytes) {
  const auto runs = static_cast<double>(state.iterations());
  state.counters["GMAC/s"] = benchmark::Counter(runs * macs * 1e-9, benchmark::Counter::kIsRate);
  state.counters["weights GB/s"] =
      benchmark::Counter(runs * weight_bytes * 1e-9, benchmark::Counter::kIsRate);
}

void RunProduct(benchmark::State& state, TensorType type, ActivationMode mode, int64_t rows, int64_t cols,
                int64_t tokens) {
  const Matrix weight(type, rows, cols);
  const auto x = Activations(tokens * cols);
  std::vector<float> y(static_cast<size_t>(tokens * rows));
  MatMulScratch scratch;
  const MatMulOutput output{weight.view, nullptr, y.data(), rows, false};
  for (auto _ : state) MatMul(Pool(), mode, {&output, 1}, x.data(), tokens, cols, scratch);
  Report(state, static_cast<double>(tokens * rows * cols), static_cast<double>(weight.bytes.size()));
}

// Every weight matrix of a model that one token reads, as separate memory, in the order and grouping in which
// a model runs them.
struct ModelShape {
  int64_t layers, embed, kv, ffn, vocab;
  TensorType qkv, gate_up;
  TensorType v[2], down[2];  // a first and second half of the layers
  TensorType output;
};
constexpr ModelShape kSmolLm2{30,
                              576,
                              192,
                              1536,
                              49152,
                              TensorType::kQ4_1,
                              TensorType::kQ4_1,
                              {TensorType::kQ4_1, TensorType::kQ4_1},
                              {TensorType::kQ4_1, TensorType::kQ4_1},
                              TensorType::kQ8_0};
constexpr ModelShape kQwen05{24,
                             896,
                             128,
                             4864,
                             151936,
                             TensorType::kQ5_0,
                             TensorType::kQ5_0,
                             {TensorType::kQ5_0, TensorType::kQ8_0},
                             {TensorType::kQ4_K, TensorType::kQ6_K},
                             TensorType::kQ8_0};
constexpr ModelShape kQwen15{28,
                             1536,
                             256,
                             8960,
                             151936,
                             TensorType::kQ4_K,
                             TensorType::kQ4_K,
                             {TensorType::kQ4_K, TensorType::kQ6_K},
                             {TensorType::kQ4_K, TensorType::kQ6_K},
                             TensorType::kQ6_K};

class ModelWeights {
 public:
  explicit ModelWeights(const ModelShape& s) : shape_(s) {
    for (int64_t layer = 0; layer < s.layers; ++layer) {
      const size_t half = 2 * layer >= s.layers ? 1 : 0;
      matrices_.emplace_back(s.qkv, s.embed, s.embed);
      matrices_.emplace_back(s.qkv, s.kv, s.embed);
      matrices_.emplace_back(s.v[half], s.kv, s.embed);
      matrices_.emplace_back(s.qkv, s.embed, s.embed);
      matrices_.emplace_back(s.gate_up, s.ffn, s.embed);
      matrices_.emplace_back(s.gate_up, s.ffn, s.embed);
      matrices_.emplace_back(s.down[half], s.embed, s.ffn);
    }
    matrices_.emplace_back(s.output, s.vocab, s.embed);
    for (const Matrix& matrix : matrices_) bytes_ += static_cast<double>(matrix.bytes.size());
  }

  // All products of `tokens` tokens; the output matrix for the last of them only, unless it is a batch.
  void Run(ActivationMode mode, int64_t tokens, int64_t output_tokens, const float* x, float* y,
           MatMulScratch& scratch) const {
    const auto product = [&](size_t first, size_t count, int64_t batch) {
      MatMulOutput outputs[3];
      float* out = y;
      for (size_t i = 0; i < count; ++i) {
        const TensorView& view = matrices_[first + i].view;
        outputs[i] = {view, nullptr, out, view.rows, false};
        out += batch * view.rows;
      }
      const int64_t cols = outputs[0].weight.cols;
      MatMul(Pool(), mode, {outputs, count}, x, batch, cols, scratch);
    };
    for (size_t layer = 0; layer < static_cast<size_t>(shape_.layers); ++layer) {
      product(7 * layer, 3, tokens);
      product(7 * layer + 3, 1, tokens);
      product(7 * layer + 4, 2, tokens);
      product(7 * layer + 6, 1, tokens);
    }
    product(matrices_.size() - 1, 1, output_tokens);
  }

  double bytes() const { return bytes_; }
  double macs(int64_t tokens, int64_t output_tokens) const {
    double sum = 0;
    for (const Matrix& matrix : matrices_) {
      const bool output = &matrix == &matrices_.back();
      sum += static_cast<double>((output ? output_tokens : tokens) * matrix.view.rows * matrix.view.cols);
    }
    return sum;
  }

 private:
  ModelShape shape_;
  std::vector<Matrix> matrices_;
  double bytes_ = 0;
};

void RunModel(benchmark::State& state, const ModelShape& shape, ActivationMode mode, int64_t tokens,
              int64_t output_tokens) {
  const ModelWeights model(shape);
  const auto x = Activations(tokens * shape.ffn);
  std::vector<float> y(static_cast<size_t>(std::max(2 * tokens * shape.ffn, output_tokens * shape.vocab)));
  MatMulScratch scratch;
  for (auto _ : state) model.Run(mode, tokens, output_tokens, x.data(), y.data(), scratch);
  Report(state, model.macs(tokens, output_tokens), model.bytes());
  state.counters["tokens/s"] =
      benchmark::Counter(static_cast<double>(state.iterations() * tokens), benchmark::Counter::kIsRate);
}

#if BGTQ_HAVE_OPENBLAS
void RunOpenBlas(benchmark::State& state, int64_t rows, int64_t cols, int64_t tokens) {
  openblas_set_num_threads(BenchThreads());
  const auto weight = Activations(rows * cols);
  const auto x = Activations(tokens * cols);
  std::vector<float> y(static_cast<size_t>(tokens * rows));
  const int m = static_cast<int>(tokens), n = static_cast<int>(rows), k = static_cast<int>(cols);
  for (auto _ : state) {
    if (tokens == 1) {
      cblas_sgemv(CblasRowMajor, CblasNoTrans, n, k, 1, weight.data(), k, x.data(), 1, 0, y.data(), 1);
    } else {
      cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, m, n, k, 1, x.data(), k, weight.data(), k, 0,
                  y.data(), n);
    }
  }
  Report(state, static_cast<double>(tokens * rows * cols), static_cast<double>(rows * cols * 4));
}
#endif

void RegisterAll() {
  using benchmark::RegisterBenchmark;
  struct NamedMode {
    const char* name;
    ActivationMode mode;
  };
  constexpr NamedMode kModes[] = {{"int8", ActivationMode::kInt8}, {"float", ActivationMode::kFloat}};
  struct NamedModel {
    const char* name;
    ModelShape shape;
  };
  const NamedModel models[] = {{"smollm2", kSmolLm2}, {"qwen0.5b", kQwen05}, {"qwen1.5b", kQwen15}};
  for (const NamedMode& mode : kModes) {
    for (const NamedModel& model : models) {
      const std::string prefix = std::string("model/") + model.name + "/" + mode.name;
      for (int64_t tokens : {1, 4, 8, 16, 512}) {
        const int64_t output_tokens = tokens == 512 ? 1 : tokens;
        RegisterBenchmark((prefix + "/" + std::to_string(tokens)).c_str(), RunModel, model.shape, mode.mode,
                          tokens, output_tokens)
            ->UseRealTime()
            ->Unit(benchmark::kMillisecond);
      }
    }
    for (const TensorTypeInfo& info : TensorTypes()) {
      const std::string prefix = std::string("type/") + info.name + "/" + mode.name;
      RegisterBenchmark((prefix + "/8192x4096x1").c_str(), RunProduct, info.type, mode.mode, 8192, 4096, 1)
          ->UseRealTime()
          ->Unit(benchmark::kMillisecond);
      RegisterBenchmark((prefix + "/1536x1536x512").c_str(), RunProduct, info.type, mode.mode, 1536, 1536,
                        512)
          ->UseRealTime()
          ->Unit(benchmark::kMillisecond);
    }
  }
  struct Shape {
    int64_t rows, cols;
  };
  for (const Shape& shape : {Shape{576, 576}, Shape{1536, 576}, Shape{576, 1536}, Shape{896, 4864},
                             Shape{4864, 896}, Shape{1536, 8960}, Shape{8960, 1536}}) {
    const std::string size = std::to_string(shape.rows) + "x" + std::to_string(shape.cols) + "x";
    const TensorType type =
        shape.cols % 256 == 0 && shape.cols > 1000 ? TensorType::kQ4_K : TensorType::kQ4_1;
    for (int64_t tokens : {1, 4, 16, 64, 512}) {
      const std::string name = size + std::to_string(tokens);
      for (const NamedMode& mode : kModes) {
        RegisterBenchmark((std::string("shape/") + mode.name + "/" + name).c_str(), RunProduct, type,
                          mode.mode, shape.rows, shape.cols, tokens)
            ->UseRealTime()
            ->Unit(benchmark::kMillisecond);
      }
#if BGTQ_HAVE_OPENBLAS
      RegisterBenchmark(("shape/openblas/" + name).c_str(), RunOpenBlas, shape.rows, shape.cols, tokens)
          ->UseRealTime()
          ->Unit(benchmark::kMillisecond);
#endif
    }
  }
}

}  // namespace
}  // namespace blockgtq::cpu

int main(int argc, char** argv) {
  blockgtq::cpu::RegisterAll();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
#if BGTQ_HAVE_OPENBLAS
  // An old OpenBLAS may not know a new CPU and pick slow kernels: OPENBLAS_CORETYPE=SkylakeX overrules it.
  benchmark::AddCustomContext("openblas_core", openblas_get_corename());
#endif
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
