// Matrix products of few rows on the GPU: the own kernel, cuBLASLt, and a pure read of the same weights, for
// the shapes of two models; then the products and small operations of a whole layer, without attention.
//
//   matmul_gpu_bench [sweep]    sweep: one and two tiles of weight rows a block
//   along
//
// Weights rotate through more memory than the L2 cache has; every figure is the median of graph replays in
// which each launch may overlap the one before it, as in decoding. Outputs are compared with cuBLASLt's.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "src/cuda/decode_attention.h"
#include "src/cuda/elementwise.h"
#include "src/cuda/gemv.h"
#include "src/cuda/launch.cuh"
#include "src/cuda/matmul.h"
#include "src/cuda/ptx.cuh"
#include "tests/cuda/device_array.h"

namespace blockgtq::cuda {
namespace {

constexpr int64_t kRotatingBytes = int64_t{400} << 20;
constexpr int kReplays = 9;

__global__ void FillKernel(uint16_t* out, int64_t count, uint32_t seed, float size) {
  for (int64_t i = blockIdx.x * int64_t{256} + threadIdx.x; i < count; i += int64_t{256} * gridDim.x) {
    uint32_t x = static_cast<uint32_t>(i) * 2654435761u + seed;
    x = (x ^ x >> 15) * 2246822519u;
    x = (x ^ x >> 13) * 3266489917u;
    reinterpret_cast<__half*>(out)[i] =
        __float2half(static_cast<float>(x >> 8) * (2 * size / (1 << 24)) - size);
  }
}

__global__ void __launch_bounds__(512) ReadKernel(const uint4* data, int64_t count, uint32_t* sink) {
  LetNextKernelStart();
  const int64_t stride = int64_t{512} * gridDim.x;
  uint32_t any = 0;
  int64_t i = blockIdx.x * int64_t{512} + threadIdx.x;
  for (; i + 7 * stride < count; i += 8 * stride) {
    uint4 v[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) v[j] = __ldcs(data + i + j * stride);
#pragma unroll
    for (int j = 0; j < 8; ++j) any |= v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
  }
  for (; i < count; i += stride) {
    const uint4 v = __ldcs(data + i);
    any |= v.x ^ v.y ^ v.z ^ v.w;
  }
  WaitForPreviousKernel();
  if (any == 0x12345678u) *sink = any;
}

// Median microseconds of a captured `enqueue`.
double Time(cudaStream_t stream, const std::function<void()>& enqueue) {
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  cudaEvent_t start, end;
  Require(cudaEventCreate(&start), "event");
  Require(cudaEventCreate(&end), "event");
  Require(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  enqueue();
  Require(cudaStreamEndCapture(stream, &graph), "capture");
  Require(cudaGraphInstantiate(&executable, graph, 0), "instantiate");
  std::vector<float> times;
  for (int i = 0; i < kReplays + 2; ++i) {
    Require(cudaEventRecord(start, stream), "record");
    Require(cudaGraphLaunch(executable, stream), "replay");
    Require(cudaEventRecord(end, stream), "record");
    Require(cudaEventSynchronize(end), "replay");
    float ms = 0;
    Require(cudaEventElapsedTime(&ms, start, end), "time");
    if (i >= 2) times.push_back(1e3f * ms);
  }
  std::sort(times.begin(), times.end());
  (void)cudaGraphExecDestroy(executable);
  (void)cudaGraphDestroy(graph);
  (void)cudaEventDestroy(start);
  (void)cudaEventDestroy(end);
  return times[times.size() / 2];
}

double Distance(const std::vector<float>& a, const std::vector<float>& b) {
  double square = 0, size = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    square += (a[i] - b[i]) * (a[i] - b[i]);
    size += b[i] * b[i];
  }
  return std::isfinite(square) ? std::sqrt(square / size) : 1;
}

struct Shape {
  const char* name;
  int64_t in;
  std::vector<int64_t> outs;
};

class Bench {
 public:
  explicit Bench(const DeviceLimits& limits) : limits_(limits), matmul_(limits.processors) {
    Require(matmul_.Prepare(), "cuBLASLt");
    Require(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "stream");
    sink_ = DeviceArray<uint32_t>(1);
  }
  ~Bench() { (void)cudaStreamDestroy(stream_); }

  void Products(const Shape& shape, bool sweep) {
    int64_t outs = 0;
    for (int64_t o : shape.outs) outs += o;
    const int64_t bytes = outs * shape.in * 2, copies = std::max<int64_t>(2, kRotatingBytes / bytes);
    DeviceArray<uint16_t> weights(copies * outs * shape.in), x(32 * shape.in);
    DeviceArray<float> y(32 * outs);
    FillKernel<<<1024, 256>>>(weights.data(), static_cast<int64_t>(weights.size()), 1, 1.0f);
    FillKernel<<<64, 256>>>(x.data(), static_cast<int64_t>(x.size()), 2, 1.0f);
    Require(cudaDeviceSynchronize(), "fill");
    const auto items = [&](int64_t copy, int64_t rows) {
      std::vector<MatMulItem> all;
      int64_t first = 0;
      for (int64_t o : shape.outs) {
        all.push_back({weights.data() + (copy * outs + first) * shape.in, nullptr, y.data() + rows * first, o,
                       o, 1, false});
        first += o;
      }
      return all;
    };
    const double read =
        Time(stream_,
             [&] {
               for (int64_t c = 0; c < copies; ++c) {
                 Require(Launch("read", ReadKernel, 2 * limits_.processors, 512, 0, true, stream_,
                                reinterpret_cast<const uint4*>(weights.data() + c * outs * shape.in),
                                bytes / 16, sink_.data()),
                         "read");
               }
             }) /
        copies;
    std::printf("%-22s %5ld -> %6ld  read %7.2f us %4.0f GB/s |", shape.name, static_cast<long>(shape.in),
                static_cast<long>(outs), read, bytes / read * 1e-3);
    for (int64_t rows : {1, 8, 16}) {
      const auto gemv = [&](int tiles) {
        return Time(stream_,
                    [&] {
                      for (int64_t c = 0; c < copies; ++c) {
                        const auto all = items(c, rows);
                        GemvCall call;
                        call.items = all;
                        call.rows = rows;
                        call.in = shape.in;
                        call.x_hi = x.data();
                        Require(LaunchGemv(call, tiles, limits_.processors, true, stream_), "product");
                      }
                    }) /
               copies;
      };
      const int chosen = ChooseGemvTiles(items(0, rows), rows, false, shape.in, limits_.processors);
      const double own = gemv(chosen);
      const std::vector<float> result = y.Download(0, rows * outs);
      const double library =
          Time(stream_,
               [&] {
                 for (int64_t c = 0; c < copies; ++c) {
                   for (const MatMulItem& item : items(c, rows)) {
                     Require(matmul_.RunLibrary({&item, 1}, x.data(), nullptr, rows, shape.in, stream_),
                             "cuBLASLt");
                   }
                 }
               }) /
          copies;
      const double distance = Distance(result, y.Download(0, rows * outs));
      std::printf(" %2ld: %7.2f us %3.0f%% lt %7.2f%s |", static_cast<long>(rows), own, 100 * read / own,
                  library, distance < 1e-5 ? "" : " WRONG");
      if (!sweep) continue;
      std::printf(" 1: %.2f 2: %.2f |", gemv(1), gemv(2));
    }
    std::printf("\n");
  }

  // The products of a layer and what lies between them, attention left out.
  void Layer(const char* name, int64_t hidden, int64_t inner, int64_t kv, int64_t rows) {
    const int64_t layers = 8, qkv = hidden + 2 * kv;
    const int64_t parameters = hidden * (qkv + hidden + 3 * inner);
    DeviceArray<uint16_t> weights(layers * parameters), h(rows * hidden), a(rows * inner);
    DeviceArray<float> x(rows * hidden), y(rows * std::max(qkv, 2 * inner));
    const DeviceArray<float> norm(std::vector<float>(hidden, 1.0f));
    FillKernel<<<1024, 256>>>(weights.data(), static_cast<int64_t>(weights.size()), 3, 0.03f);
    x.Upload(std::vector<float>(rows * hidden, 1.0f));
    const auto product = [&](const std::vector<MatMulItem>& items, const uint16_t* in, int64_t size) {
      Require(matmul_.Run(items, in, nullptr, rows, size, true, stream_), "product");
    };
    const auto normalise = [&] {
      Require(LaunchRmsNorm(x.data(), norm.data(), 1e-6f, rows, hidden, h.data(), nullptr, nullptr, true,
                            stream_),
              "norm");
    };
    const auto enqueue = [&] {
      for (int64_t l = 0; l < layers; ++l) {
        const uint16_t* w = weights.data() + l * parameters;
        const auto take = [&](int64_t count) { return (w += count) - count; };
        const uint16_t *q = take(hidden * hidden), *k = take(hidden * kv), *v = take(hidden * kv);
        normalise();
        product({{q, nullptr, y.data(), hidden, hidden, 1, false},
                 {k, nullptr, y.data() + rows * hidden, kv, kv, 1, false},
                 {v, nullptr, y.data() + rows * (hidden + kv), kv, kv, 1, false}},
                h.data(), hidden);
        Require(LaunchSplitHalves(y.data(), rows * hidden, h.data(), nullptr, true, stream_), "split");
        product({{take(hidden * hidden), nullptr, x.data(), hidden, hidden, 1, true}}, h.data(), hidden);
        const uint16_t *gate = take(hidden * inner), *up = take(hidden * inner);
        float* u = y.data() + rows * inner;
        const std::vector<MatMulItem> wide = {{gate, nullptr, y.data(), inner, inner, 1, false},
                                              {up, nullptr, u, inner, inner, 1, false}};
        normalise();
        product(wide, h.data(), hidden);
        Require(LaunchGate(GateFunction::kSilu, y.data(), u, rows * inner, a.data(), nullptr, true, stream_),
                "silu");
        product({{take(hidden * inner), nullptr, x.data(), hidden, hidden, kInnerScale, true}}, a.data(),
                inner);
      }
    };
    const double us = Time(stream_, enqueue) / layers;
    double size = 0;
    for (float f : x.Download()) size += f * f;
    std::printf("layer of %s, %2ld rows: %7.2f us, %5.1f MB, %4.0f GB/s%s\n", name, static_cast<long>(rows),
                us, parameters * 2e-6, parameters * 2e-3 / us, std::isfinite(size) ? "" : " NOT FINITE");
  }

 private:
  DeviceLimits limits_;
  MatMul matmul_;
  cudaStream_t stream_;
  DeviceArray<uint32_t> sink_;
};

void Run(bool sweep) {
  const DeviceLimits limits = Require(ReadDeviceLimits(0), "device");
  Bench bench(limits);
  std::printf("us and share of a pure read; lt: cuBLASLt, a launch a product\n");
  for (const Shape& shape : {Shape{"Qwen2.5-3B q,k,v", 2048, {2048, 256, 256}},
                             {"Qwen2.5-3B o", 2048, {2048}},
                             {"Qwen2.5-3B gate,up", 2048, {11008, 11008}},
                             {"Qwen2.5-3B down", 11008, {2048}},
                             {"Qwen2.5-3B logits", 2048, {151936}},
                             {"Llama-3.1-8B q,k,v", 4096, {4096, 1024, 1024}},
                             {"Llama-3.1-8B o", 4096, {4096}},
                             {"Llama-3.1-8B gate,up", 4096, {14336, 14336}},
                             {"Llama-3.1-8B down", 14336, {4096}},
                             {"Llama-3.1-8B logits", 4096, {128256}},
                             {"Qwen2.5-0.5B o", 896, {896}}}) {
    bench.Products(shape, sweep);
  }
  for (int64_t rows : {1, 8}) {
    bench.Layer("Qwen2.5-3B", 2048, 11008, 256, rows);
    bench.Layer("Llama-3.1-8B", 4096, 14336, 1024, rows);
  }
}

}  // namespace
}  // namespace blockgtq::cuda

int main(int argc, char** argv) {
  blockgtq::cuda::Run(argc > 1 && std::strcmp(argv[1], "sweep") == 0);
  return 0;
}
