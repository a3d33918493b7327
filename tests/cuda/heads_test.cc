// Copies of heads' columns and products with a matrix a head on the GPU, against double precision.
//
//   heads_test [quick]    quick: small cases, for compute-sanitizer and the emulator
//
#include "src/cuda/heads.h"

#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "src/core/half.h"
#include "src/cuda/matmul_item.h"
#include "tests/cpu/packed_head_model.h"
#include "tests/cuda/device_array.h"
#include "tests/cuda/harness.h"

namespace blockgtq::cuda {
namespace {

void TestCopy() {
  const int64_t rows = 5, x_cols = 100, y_cols = 77;
  const std::vector<float> x = cpu::Normals(rows * x_cols, 1.0f, 1),
                           before = cpu::Normals(rows * y_cols, 1.0f, 2);
  const DeviceArray<float> device_x(x), device_y(before);
  const HeadColumns from{30, 7, 13}, to{25, 2, 13};
  Require(LaunchCopyHeads(device_x.data(), x_cols, from, 3, rows, device_y.data(), y_cols, to, nullptr),
          "launch");
  Require(cudaDeviceSynchronize(), "copy");
  std::vector<float> expected = before;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t h = 0; h < 3; ++h) {
      for (int64_t c = 0; c < 13; ++c) expected[r * y_cols + h * 25 + 2 + c] = x[r * x_cols + h * 30 + 7 + c];
    }
  }
  Check(device_y.Download() == expected, "columns of heads are copied, others stay");
}

enum class Input { kFull, kSplit, kHalves, kHalvesWithLow };

struct Shape {
  int heads;
  int64_t in, out, rows;
};

void TestProduct(const Shape& s, Input input) {
  const std::string name = std::to_string(s.heads) + " heads, " + std::to_string(s.in) + " to " +
                           std::to_string(s.out) + ", " + std::to_string(s.rows) + " rows, input " +
                           std::to_string(static_cast<int>(input));
  const HeadColumns from{s.in + 24, 16, s.in}, to{s.out + 5, 3, s.out};
  const int64_t x_cols = s.heads * from.stride, y_cols = s.heads * to.stride;
  const std::vector<float> x = cpu::Normals(s.rows * x_cols, 1.0f, 3),
                           before = cpu::Normals(s.rows * y_cols, 1.0f, 4);
  std::vector<DeviceArray<uint16_t>> weights;
  std::vector<std::vector<float>> values;
  std::vector<const uint16_t*> addresses;
  for (int h = 0; h < s.heads; ++h) {
    std::vector<uint16_t> halves;
    values.push_back(cpu::Normals(s.in * s.out, 0.1f, 50 + h));
    for (float& v : values.back()) {
      halves.push_back(FloatToHalf(v));
      v = HalfToFloat(halves.back());
    }
    weights.emplace_back(halves);
    addresses.push_back(weights.back().data());
  }
  std::vector<uint16_t> high, low;
  constexpr float kScale = 4;
  for (float v : x) {
    high.push_back(FloatToHalf(v / kScale));
    low.push_back(FloatToHalf((v / kScale - HalfToFloat(high.back())) * kLowHalfScale));
  }
  const DeviceArray<float> device_x(x), device_y(before);
  const DeviceArray<uint16_t> device_high(high), device_low(low);
  HeadInput columns;
  columns.cols = x_cols;
  if (input == Input::kFull || input == Input::kSplit) {
    columns.full = device_x.data();
    columns.split = input == Input::kSplit;
  } else {
    columns.high = device_high.data();
    columns.low = input == Input::kHalvesWithLow ? device_low.data() : nullptr;
    columns.scale = kScale;
  }
  Require(LaunchProductHeads(addresses, columns, from, s.rows, device_y.data(), y_cols, to, nullptr),
          "launch");
  Require(cudaDeviceSynchronize(), "product");
  const std::vector<float> got = device_y.Download();
  std::vector<float> rest = got, expected = before, y, wanted;
  for (int64_t r = 0; r < s.rows; ++r) {
    for (int64_t h = 0; h < s.heads; ++h) {
      for (int64_t n = 0; n < s.out; ++n) {
        double sum = 0;
        for (int64_t k = 0; k < s.in; ++k)
          sum += double{values[h][n * s.in + k]} * x[r * x_cols + h * from.stride + from.first + k];
        const int64_t at = r * y_cols + h * to.stride + to.first + n;
        wanted.push_back(static_cast<float>(sum));
        y.push_back(got[at]);
        rest[at] = expected[at];
      }
    }
  }
  const bool exact = input == Input::kSplit || input == Input::kHalvesWithLow;
  const double error = cpu::RelativeL2(y, wanted);
  char figures[48];
  std::snprintf(figures, sizeof figures, ": relative error %.1e", error);
  Check(error < (exact ? 2e-6 : 5e-4), name + figures);
  Check(rest == expected, name + ": other columns stay");
}

void TestRefusals() {
  const std::vector<const uint16_t*> one(1, nullptr), many(kMaxProductHeads + 1, nullptr);
  HeadInput x;
  const Status odd = LaunchProductHeads(one, x, {12, 0, 12}, 1, nullptr, 8, {8, 0, 8}, nullptr);
  Check(odd.code() == ErrorCode::kUnsupported && odd.message().find("12 inputs") != std::string::npos,
        "12 inputs are refused: " + odd.message());
  Check(LaunchProductHeads(many, x, {16, 0, 16}, 1, nullptr, 8, {8, 0, 8}, nullptr).code() ==
            ErrorCode::kUnsupported,
        "too many heads are refused");
  Check(LaunchProductHeads(one, x, {16, 0, 16}, 0, nullptr, 8, {8, 0, 8}, nullptr).code() ==
            ErrorCode::kInvalidArgument,
        "no rows are refused");
}

void RunAll(const DeviceLimits&, bool quick) {
  TestCopy();
  TestRefusals();
  for (Input input : {Input::kFull, Input::kSplit, Input::kHalves, Input::kHalvesWithLow}) {
    TestProduct({3, 32, 20, 2}, input);
    TestProduct({2, 40, 70, 37}, input);
    if (quick) continue;
    TestProduct({16, 128, 512, 1}, input);
    TestProduct({16, 512, 128, 9}, input);
    TestProduct({16, 512, 128, 150}, input);
    TestProduct({128, 128, 512, 3}, input);
    TestProduct({5, 1024, 65, 70}, input);
  }
}

}  // namespace
}  // namespace blockgtq::cuda

int main(int argc, char** argv) { return blockgtq::cuda::RunTests(argc, argv, blockgtq::cuda::RunAll); }
