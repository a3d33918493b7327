// Matrix products on the GPU against double precision; uploading of weights against the scalar decoders.
//
//   matmul_test [quick]    quick: a few small cases, for compute-sanitizer
//
#include "src/cuda/matmul.h"

#include <cmath>
#include <cstdio>
#include <future>
#include <random>
#include <string>
#include <vector>

#include "src/core/half.h"
#include "src/cuda/elementwise.h"
#include "src/cuda/gemv.h"
#include "src/cuda/matmul_weights.h"
#include "tests/cuda/device_array.h"
#include "tests/cuda/harness.h"

namespace blockgtq::cuda {
namespace {

// fp32 sums of exact products: about 1e-7 times the root of their number, in tensor products that truncate.
constexpr double kTolerance = 1e-5;
constexpr float kPoison = -12345.0f;

struct Output {
  int64_t out = 64;
  bool bias = false, accumulate = false;
  float alpha = 1;
  int64_t gap = 0;  // floats between rows of y
};
struct Case {
  int64_t rows = 1, in = 64;
  bool low = false;
  std::vector<Output> outputs;
  std::string Name() const {
    std::string name =
        std::to_string(rows) + (low ? " rows with a low half, " : " rows, ") + std::to_string(in) + " ->";
    for (const Output& o : outputs) name += " " + std::to_string(o.out);
    return name;
  }
};

std::vector<uint16_t> RandomHalves(size_t count, float size, unsigned seed) {
  std::vector<uint16_t> out(count);
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> uniform(-size, size);
  for (uint16_t& h : out) h = FloatToHalf(uniform(random));
  return out;
}
std::vector<float> RandomFloats(size_t count, float size, unsigned seed) {
  std::vector<float> out(count);
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> uniform(-size, size);
  for (float& f : out) f = uniform(random);
  return out;
}

// Operands on both sides, and the exact result.
class Fixture {
 public:
  explicit Fixture(const Case& c) : c_(c) {
    hi_ = RandomHalves(c.rows * c.in, 2, 1);
    x_.assign(hi_.size(), 0);
    if (c.low) lo_ = RandomHalves(c.rows * c.in, 1, 2);
    for (size_t i = 0; i < x_.size(); ++i) {
      x_[i] = HalfToFloat(hi_[i]) + (c.low ? HalfToFloat(lo_[i]) / double{kLowHalfScale} : 0.0);
    }
    device_hi_ = DeviceArray<uint16_t>(hi_);
    if (c.low) device_lo_ = DeviceArray<uint16_t>(lo_);
    for (size_t i = 0; i < c.outputs.size(); ++i) {
      const Output& o = c.outputs[i];
      const int64_t stride = o.out + o.gap;
      weights_.push_back(RandomHalves(o.out * c.in, 1, 10 + i));
      biases_.push_back(RandomFloats(o.bias ? o.out : 0, 5, 20 + i));
      before_.push_back(o.accumulate ? RandomFloats(c.rows * stride, 20, 30 + i)
                                     : std::vector<float>(c.rows * stride, kPoison));
      device_weights_.emplace_back(weights_[i]);
      device_biases_.emplace_back(biases_[i]);
      y_.emplace_back(before_[i]);
      items_.push_back({device_weights_[i].data(), o.bias ? device_biases_[i].data() : nullptr, y_[i].data(),
                        o.out, stride, o.alpha, o.accumulate});
    }
    std::vector<std::future<std::vector<double>>> work;
    for (size_t i = 0; i < c.outputs.size(); ++i) {
      work.push_back(std::async(std::launch::async, [this, i] { return Reference(i); }));
    }
    for (auto& w : work) references_.push_back(w.get());
  }

  template <typename Run>
  void Check(const std::string& name, Run run) {
    std::vector<std::vector<float>> first;
    for (int pass = 0; pass < 2; ++pass) {
      for (size_t i = 0; i < y_.size(); ++i) y_[i].Upload(before_[i]);
      Require(run(items_, device_hi_.data(), c_.low ? device_lo_.data() : nullptr), name.c_str());
      Require(cudaDeviceSynchronize(), name.c_str());
      for (size_t i = 0; i < y_.size(); ++i) {
        const std::vector<float> y = y_[i].Download();
        if (pass == 0) {
          first.push_back(y);
          Compare(i, y, name);
        } else {
          cuda::Check(std::memcmp(y.data(), first[i].data(), y.size() * sizeof(float)) == 0,
                      name + ": the same bits in a second run");
        }
      }
    }
  }

 private:
  std::vector<double> Reference(size_t i) const {
    const Output& o = c_.outputs[i];
    std::vector<double> y(c_.rows * o.out);
    std::vector<double> w(c_.in);
    for (int64_t n = 0; n < o.out; ++n) {
      for (int64_t k = 0; k < c_.in; ++k) w[k] = HalfToFloat(weights_[i][n * c_.in + k]);
      for (int64_t r = 0; r < c_.rows; ++r) {
        double sum = 0;
        for (int64_t k = 0; k < c_.in; ++k) sum += w[k] * x_[r * c_.in + k];
        y[r * o.out + n] = o.alpha * sum + (o.bias ? biases_[i][n] : 0.0f) +
                           (o.accumulate ? before_[i][r * (o.out + o.gap) + n] : 0.0f);
      }
    }
    return y;
  }
  void Compare(size_t i, const std::vector<float>& y, const std::string& name) const {
    const Output& o = c_.outputs[i];
    double square = 0, size = 0, worst = 0;
    bool gap_kept = true;
    for (int64_t r = 0; r < c_.rows; ++r) {
      for (int64_t n = 0; n < o.out + o.gap; ++n) {
        const size_t at = r * (o.out + o.gap) + n;
        if (n >= o.out) {
          gap_kept = gap_kept && y[at] == before_[i][at];
          continue;
        }
        const double reference = references_[i][r * o.out + n], difference = y[at] - reference;
        square += std::isfinite(difference) ? difference * difference : 1e30;
        worst = std::max(worst, std::fabs(difference));
        size += reference * reference;
      }
    }
    const double error = std::sqrt(square / size), root_mean = std::sqrt(size / references_[i].size());
    char text[160];
    std::snprintf(text, sizeof text, "%s, product %zu: error %.2e, worst element %.2e", name.c_str(), i,
                  error, worst / root_mean);
    cuda::Check(error <= kTolerance && worst <= 20 * kTolerance * root_mean, text);
    cuda::Check(gap_kept, name + ": nothing is written between rows");
  }

  Case c_;
  std::vector<uint16_t> hi_, lo_;
  std::vector<double> x_;
  std::vector<std::vector<uint16_t>> weights_;
  std::vector<std::vector<float>> biases_, before_;
  std::vector<std::vector<double>> references_;
  DeviceArray<uint16_t> device_hi_, device_lo_;
  std::vector<DeviceArray<uint16_t>> device_weights_;
  std::vector<DeviceArray<float>> device_biases_, y_;
  std::vector<MatMulItem> items_;
};

void TestProducts(const DeviceLimits& limits, bool quick) {
  MatMul matmul(limits.processors);
  std::vector<Case> cases = {
      {1, 64, false, {{64}}},
      {1, 8, false, {{1}}},
      {3, 40, false, {{17, true, true, 16, 3}, {5}}},
      {1, 576, false, {{576, true}, {192, true}, {192, true}}},
      {8, 584, false, {{100, true, true, 0.5f, 28}}},
      {16, 896, false, {{96}, {32, true}, {16, false, true}, {33}}},
      {8, 608, true, {{96, true, true, 2}}},
  };
  if (!quick) {  // sanitizers report races inside cuBLASLt's kernels: those are not among the quick cases
    const std::vector<Case> more = {
        {17, 64, false, {{64, true, true, 16, 4}}},
        {40, 576, true, {{192, true}, {64, false, true, 3}}},
        {1, 2048, false, {{2048, true}, {256, true}, {256, true}}},
        {2, 896, false, {{4864}, {4864}}},
        {5, 1536, false, {{1536, false, true}}},
        {1, 11008, false, {{2048, false, true, 16}}},
        {8, 11008, false, {{2048, false, true, 16}}},
        {8, 4096, false, {{512}}},
        {8, 14336, true, {{512, false, true, 16}}},
        {9, 4096, false, {{1024, true}}},
        {16, 8960, false, {{1536, false, true, 16}}},
        {4, 4864, true, {{896, false, true, 16}}},
        {1, 896, false, {{64}, {64}, {64}, {64}, {64}, {64}}},
        {333, 2048, false, {{256, true}, {512, false, true, 16}}},
        {64, 11008, true, {{128, true, true, 16, 64}}},
    };
    cases.insert(cases.end(), more.begin(), more.end());
  }
  for (const Case& c : cases) {
    Fixture fixture(c);
    fixture.Check(c.Name(), [&](const auto& items, const uint16_t* hi, const uint16_t* lo) {
      return matmul.Run(items, hi, lo, c.rows, c.in, false, nullptr);
    });
    if (MatMul::NeedsLibrary(c.rows, c.low) || c.outputs.size() > kGemvMaxItems) continue;
    for (int tiles : {1, 2}) {
      const std::string name = c.Name() + ", tiles " + std::to_string(tiles);
      for (int processors : {limits.processors, 5}) {  // 5: many groups a block
        if (processors == 5 ? c.in > 2048 : quick) continue;
        fixture.Check(name, [&](const auto& items, const uint16_t* hi, const uint16_t* lo) {
          GemvCall call;
          call.items = items;
          call.rows = c.rows;
          call.in = c.in;
          call.x_hi = hi;
          call.x_lo = lo;
          return LaunchGemv(call, tiles, processors, true, nullptr);
        });
      }
    }
  }
}

void TestRefusals(const DeviceLimits& limits) {
  MatMul matmul(limits.processors);
  DeviceArray<uint16_t> weight(64 * 64), x(64 * 64);
  DeviceArray<float> y(64 * 64);
  const MatMulItem item = {weight.data(), nullptr, y.data(), 64, 64, 1, false};
  for (int64_t rows : {1, 32}) {
    const Status odd = matmul.Run({&item, 1}, x.data(), nullptr, rows, 36, false, nullptr);
    Check(odd.code() == ErrorCode::kUnsupported && odd.message().find("36") != std::string::npos,
          "an input of 36 columns is refused by name: " + odd.message());
  }
  Check(matmul.Run({}, x.data(), nullptr, 1, 64, false, nullptr).code() == ErrorCode::kInvalidArgument,
        "no products are refused");
  GemvCall call;
  call.items = {&item, 1};
  call.rows = 9;
  call.in = 64;
  call.x_hi = call.x_lo = x.data();
  Check(LaunchGemv(call, 1, limits.processors, false, nullptr).code() == ErrorCode::kInvalidArgument,
        "9 rows with a low half are refused");
}

// A feed-forward in a captured graph whose kernels overlap gives the bits of kernels run one at a time, also
// for inputs that change between replays.
void TestCapturedChain(const DeviceLimits& limits, int64_t rows) {
  constexpr int64_t kHidden = 512, kInner = 1376, kLayers = 6;
  MatMul matmul(limits.processors);
  const DeviceArray<uint16_t> gate(RandomHalves(kInner * kHidden, 0.05f, 1)),
      up(RandomHalves(kInner * kHidden, 0.05f, 2)), down(RandomHalves(kInner * kHidden, 0.05f, 3));
  const DeviceArray<float> norm(RandomFloats(kHidden, 1, 4));
  DeviceArray<float> x(rows * kHidden), g(rows * kInner), u(rows * kInner);
  DeviceArray<uint16_t> h(rows * kHidden), inner(rows * kInner);
  cudaStream_t stream;
  Require(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  const auto enqueue = [&](bool early) {
    const auto step = [&](const Status& status) {
      Require(status, "chain");
      if (!early) Require(cudaStreamSynchronize(stream), "chain");
    };
    for (int layer = 0; layer < kLayers; ++layer) {
      const MatMulItem first[2] = {{gate.data(), nullptr, g.data(), kInner, kInner, 1, false},
                                   {up.data(), nullptr, u.data(), kInner, kInner, 1, false}};
      step(LaunchRmsNorm(x.data(), norm.data(), 1e-6f, rows, kHidden, h.data(), nullptr, nullptr, early,
                         stream));
      step(matmul.Run(first, h.data(), nullptr, rows, kHidden, early, stream));
      step(LaunchGate(GateFunction::kSilu, g.data(), u.data(), rows * kInner, inner.data(), nullptr, early,
                      stream));
      const MatMulItem second = {down.data(), nullptr, x.data(), kHidden, kHidden, kInnerScale, true};
      step(matmul.Run({&second, 1}, inner.data(), nullptr, rows, kInner, early, stream));
    }
  };
  if (MatMul::NeedsLibrary(rows, false)) Require(matmul.Prepare(), "cuBLASLt");
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  Require(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  enqueue(true);
  Require(cudaStreamEndCapture(stream, &graph), "capture");
  Require(cudaGraphInstantiate(&executable, graph, 0), "instantiate");
  for (unsigned seed : {100u, 101u, 102u}) {
    const std::vector<float> input = RandomFloats(rows * kHidden, 3, seed);
    x.Upload(input);
    enqueue(false);
    const std::vector<float> expected = x.Download();
    x.Upload(input);
    Require(cudaGraphLaunch(executable, stream), "replay");
    Require(cudaStreamSynchronize(stream), "replay");
    const std::vector<float> y = x.Download();
    Check(std::memcmp(y.data(), expected.data(), y.size() * sizeof(float)) == 0 && y != input,
          "a captured feed-forward of " + std::to_string(rows) + " rows gives the same bits");
  }
  (void)cudaGraphExecDestroy(executable);
  (void)cudaGraphDestroy(graph);
  (void)cudaStreamDestroy(stream);
}

// Bytes of a random matrix: quantised blocks with a scale of 0.01.
std::vector<std::byte> RandomTensor(TensorType type, int64_t rows, int64_t cols) {
  const TensorTypeInfo& info = GetTensorType(type);
  std::vector<std::byte> bytes(rows * cols / info.block_elements * info.block_bytes);
  std::mt19937 random(static_cast<unsigned>(type) + 1);
  std::uniform_real_distribution<float> uniform(-3, 3);
  const uint16_t scale = FloatToHalf(0.01f);
  for (size_t i = 0; i < bytes.size(); i += info.block_bytes) {
    for (int j = 0; j < info.block_bytes; ++j) bytes[i + j] = static_cast<std::byte>(random());
    const float f = uniform(random);
    const uint16_t half = type == TensorType::kBF16 ? FloatToBf16(f) : FloatToHalf(f);
    if (type == TensorType::kF32) {
      std::memcpy(&bytes[i], &f, 4);
    } else if (info.block_elements == 1) {
      std::memcpy(&bytes[i], &half, 2);
    } else {
      std::memcpy(&bytes[i], &scale, 2);
    }
  }
  return bytes;
}

void TestUpload(bool quick) {
  const auto uploader = Require(WeightUploader::Create(4), "uploader");
  struct Shape {
    TensorType type;
    int64_t rows, cols;
  };
  std::vector<Shape> shapes = {{TensorType::kF32, 3, 40},
                               {TensorType::kF16, 5, 64},
                               {TensorType::kBF16, 7, 96},
                               {TensorType::kQ8_0, 33, 64},
                               {TensorType::kQ4_0, 2, 576}};
  if (!quick) {
    shapes.push_back({TensorType::kQ8_0, 40001, 896});  // several slices
    shapes.push_back({TensorType::kF16, 50000, 1536});
  }
  for (const Shape& s : shapes) {
    const std::vector<std::byte> bytes = RandomTensor(s.type, s.rows, s.cols);
    const TensorView view = {s.type, bytes.data(), s.rows, s.cols};
    const std::string name = GetTensorType(s.type).name;
    const DeviceBuffer matrix = Require(uploader->Matrix(view, "w"), "matrix");
    const DeviceBuffer vector = Require(uploader->Vector(view, "w"), "vector");
    std::vector<uint16_t> halves(s.rows * s.cols);
    std::vector<float> floats(s.rows * s.cols);
    Require(cudaMemcpy(halves.data(), matrix.data(), matrix.bytes(), cudaMemcpyDeviceToHost), "download");
    Require(cudaMemcpy(floats.data(), vector.data(), vector.bytes(), cudaMemcpyDeviceToHost), "download");
    int64_t different = 0;
    std::vector<float> row(s.cols);
    for (int64_t r = 0; r < s.rows; ++r) {
      DequantizeRow(view, r, row.data());
      for (int64_t i = 0; i < s.cols; ++i) {
        different += halves[r * s.cols + i] != FloatToHalf(row[i]) || floats[r * s.cols + i] != row[i];
      }
    }
    Check(different == 0, "uploaded " + name + ": " + std::to_string(different) + " elements differ");
  }
  std::vector<float> large(64, 1.0f);
  large[45] = 70000.0f;
  const auto refused = uploader->Matrix(
      {TensorType::kF32, reinterpret_cast<const std::byte*>(large.data()), 2, 32}, "blk.7.ffn_up.weight");
  const std::string message = refused.status().message();
  Check(refused.status().code() == ErrorCode::kUnsupported &&
            message.find("blk.7.ffn_up.weight: row 1, column 13") != std::string::npos,
        "a weight beyond fp16 is refused by name: " + message);
  if (quick) return;  // memcheck counts a refused allocation as an error
  const auto huge = DeviceBuffer::Allocate(int64_t{1} << 46, "a test of too much memory");
  Check(huge.status().code() == ErrorCode::kOutOfMemory &&
            huge.status().message().find("70368744177664 bytes") != std::string::npos,
        "too much memory is an error that states it: " + huge.status().message());
}

void Run(const DeviceLimits& limits, bool quick) {
  TestProducts(limits, quick);
  TestRefusals(limits);
  TestCapturedChain(limits, 1);
  if (!quick) {
    for (int64_t rows : {8, 16, 24}) TestCapturedChain(limits, rows);
  }
  TestUpload(quick);
}

}  // namespace
}  // namespace blockgtq::cuda

int main(int argc, char** argv) { return blockgtq::cuda::RunTests(argc, argv, blockgtq::cuda::Run); }
