// Element-wise kernels against double precision; RoPE against the host's, and where it stores.
//
//   elementwise_test [quick]    quick: a few small cases, for compute-sanitizer
//
#include "src/cuda/elementwise.h"

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "src/core/half.h"
#include "src/core/rope.h"
#include "src/cuda/elementwise_rope.h"
#include "tests/cuda/device_array.h"
#include "tests/cuda/harness.h"

namespace blockgtq::cuda {
namespace {

std::vector<float> Normals(size_t count, float size, unsigned seed) {
  std::vector<float> out(count);
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, size);
  for (float& f : out) f = normal(random);
  return out;
}

// hi is `value` rounded, give or take `slack` of it before the rounding.
bool RoundsTo(uint16_t hi, double value, double slack) {
  const float h = HalfToFloat(hi), low = static_cast<float>(value - slack),
              high = static_cast<float>(value + slack);
  return h >= HalfToFloat(FloatToHalf(low)) && h <= HalfToFloat(FloatToHalf(high));
}

void CheckHalves(const std::vector<double>& expected, const std::vector<uint16_t>& hi,
                 const std::vector<uint16_t>& lo, double relative, const std::string& name) {
  size_t bad = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double slack = relative * std::fabs(expected[i]) + 1e-30;
    bool ok = RoundsTo(hi[i], expected[i], slack);
    if (!lo.empty()) {  // together: 22 bits, down to the smallest half
      const double value = HalfToFloat(hi[i]) + HalfToFloat(lo[i]) / double{kLowHalfScale};
      ok = ok && std::fabs(value - expected[i]) <= slack + 3e-7 * std::fabs(expected[i]) + 2e-11;
    }
    bad += !ok;
  }
  Check(bad == 0, name + ": " + std::to_string(bad) + " elements are wrong");
}

void TestNorm(int64_t rows, int64_t cols) {
  const std::string name = "RMS norm " + std::to_string(rows) + " x " + std::to_string(cols);
  const float epsilon = 1e-5f;
  const std::vector<float> x = Normals(rows * cols, 3, 1), w = Normals(cols, 1, 2);
  std::vector<double> expected(x.size());
  for (int64_t r = 0; r < rows; ++r) {
    double sum = 0;
    for (int64_t i = 0; i < cols; ++i) sum += double{x[r * cols + i]} * x[r * cols + i];
    for (int64_t i = 0; i < cols; ++i) {
      expected[r * cols + i] = x[r * cols + i] / std::sqrt(sum / cols + epsilon) * w[i];
    }
  }
  const DeviceArray<float> dx(x), dw(w);
  DeviceArray<uint16_t> hi(x.size()), lo(x.size());
  DeviceArray<float> y(x.size());
  hi.Fill(0xff), lo.Fill(0xff), y.Fill(0xff);
  Require(LaunchRmsNorm(dx.data(), dw.data(), epsilon, rows, cols, hi.data(), lo.data(), y.data(), false,
                        nullptr),
          "norm");
  CheckHalves(expected, hi.Download(), lo.Download(), 1e-6, name);
  double worst = 0;
  const std::vector<float> floats = y.Download();
  for (size_t i = 0; i < x.size(); ++i) {
    const double error = std::fabs(floats[i] - expected[i]) / (std::fabs(expected[i]) + 1e-30);
    worst = std::isnan(error) ? 1 : std::max(worst, error);
  }
  Check(worst < 1e-6, name + " in fp32: " + std::to_string(worst));
  hi.Fill(0xff);
  Require(
      LaunchRmsNorm(dx.data(), dw.data(), epsilon, rows, cols, hi.data(), nullptr, nullptr, true, nullptr),
      "norm");
  CheckHalves(expected, hi.Download(), {}, 1e-6, name + " alone");
}

// Heads of `width` in place, and a norm that is added.
void TestNormsOfRows(int64_t rows, int64_t width) {
  const std::string name = "norms of rows, " + std::to_string(rows) + " x " + std::to_string(width);
  const float epsilon = 1e-6f;
  const std::vector<float> x = Normals(rows * width, 3, 11), w = Normals(width, 1, 12),
                           base = Normals(rows * width, 2, 13);
  DeviceArray<float> in_place(x), added(base);
  const DeviceArray<float> dx(x), dw(w);
  Require(LaunchRmsNorm(in_place.data(), dw.data(), epsilon, rows, width, nullptr, nullptr, in_place.data(),
                        true, nullptr),
          "norm in place");
  Require(LaunchRmsNormAdd(dx.data(), dw.data(), epsilon, rows, width, added.data(), true, nullptr),
          "norm that is added");
  const std::vector<float> got = in_place.Download(), sum = added.Download();
  size_t bad = 0;
  for (int64_t r = 0; r < rows; ++r) {
    double squares = 0;
    for (int64_t i = 0; i < width; ++i) squares += double{x[r * width + i]} * x[r * width + i];
    for (int64_t i = 0; i < width; ++i) {
      const int64_t at = r * width + i;
      const double norm = x[at] / std::sqrt(squares / width + epsilon) * w[i];
      bad += !(std::fabs(got[at] - norm) <= 1e-6 * std::fabs(norm));
      bad += !(std::fabs(sum[at] - (base[at] + norm)) <= 1e-6 * (std::fabs(norm) + std::fabs(base[at])));
    }
  }
  Check(bad == 0, name + ": " + std::to_string(bad) + " elements are wrong");
}

void TestGate(int64_t count) {
  const std::vector<float> gate = Normals(count, 6, 3), up = Normals(count, 300, 4);
  const DeviceArray<float> dg(gate), du(up);
  for (const GateFunction function : {GateFunction::kSilu, GateFunction::kGeluTanh}) {
    const bool silu = function == GateFunction::kSilu;
    std::vector<double> expected(count);
    for (int64_t i = 0; i < count; ++i) {
      const double z = gate[i];
      const double share = silu ? 1 / (1 + std::exp(-z))
                                : 0.5 * (1 + std::tanh(std::sqrt(2 / M_PI) * (z + 0.044715 * z * z * z)));
      expected[i] = z * share * up[i] / kInnerScale;
    }
    DeviceArray<uint16_t> hi(count), lo(count);
    hi.Fill(0xff), lo.Fill(0xff);
    Require(LaunchGate(function, dg.data(), du.data(), count, hi.data(), lo.data(), false, nullptr), "gate");
    CheckHalves(expected, hi.Download(), lo.Download(), silu ? 4e-6 : 1e-5,
                (silu ? "SiLU of " : "GELU of ") + std::to_string(count));
  }
}

void TestScale(int64_t count) {
  const std::vector<float> x = Normals(count, 2, 14);
  DeviceArray<float> dx(x);
  Require(LaunchScale(dx.data(), 33.9411f, count, true, nullptr), "scale");
  const std::vector<float> got = dx.Download();
  size_t bad = 0;
  for (int64_t i = 0; i < count; ++i) bad += got[i] != x[i] * 33.9411f;
  Check(bad == 0, "scaling: " + std::to_string(bad) + " elements are wrong");
}

void TestConversions(int64_t count) {
  const std::vector<float> x = Normals(count, 100, 5);
  const DeviceArray<float> dx(x);
  DeviceArray<uint16_t> hi(count), lo(count);
  DeviceArray<float> y(count);
  hi.Fill(0xff), lo.Fill(0xff), y.Fill(0xff);
  Require(LaunchSplitHalves(dx.data(), count, hi.data(), lo.data(), false, nullptr), "split");
  CheckHalves({x.begin(), x.end()}, hi.Download(), lo.Download(), 0, "split");
  Require(LaunchWiden(hi.data(), lo.data(), count, y.data(), true, nullptr), "widen");
  const std::vector<float> both = y.Download();
  Require(LaunchWiden(hi.data(), nullptr, count, y.data(), true, nullptr), "widen");
  const std::vector<float> high = y.Download();
  size_t bad = 0;
  for (int64_t i = 0; i < count; ++i) {
    bad += !(std::fabs(both[i] - x[i]) <= 3e-7 * std::fabs(x[i]) + 2e-11) ||
           high[i] != HalfToFloat(FloatToHalf(x[i]));
  }
  Check(bad == 0, "widening: " + std::to_string(bad) + " elements are wrong");
}

void TestRows(int64_t rows, int64_t cols) {
  constexpr int kVocabulary = 97;
  std::vector<uint16_t> table(kVocabulary * cols);
  std::mt19937 random(6);
  for (auto& h : table) h = static_cast<uint16_t>(random() & 0xbbff);  // any finite half
  std::vector<int32_t> tokens(rows);
  for (auto& t : tokens) t = static_cast<int32_t>(random() % kVocabulary);
  const DeviceArray<uint16_t> device_table(table);
  const DeviceArray<int32_t> device_tokens(tokens);
  DeviceArray<float> out(rows * cols);
  DeviceArray<uint16_t> gathered(rows * cols);
  out.Fill(0xff), gathered.Fill(0xff);
  Require(LaunchEmbed(device_table.data(), device_tokens.data(), rows, cols, out.data(), false, nullptr),
          "embed");
  Require(LaunchGatherRows(device_table.data(), cols * 2, device_tokens.data(), rows, gathered.data(), true,
                           nullptr),
          "gather");
  const std::vector<float> floats = out.Download();
  const std::vector<uint16_t> halves = gathered.Download();
  size_t bad = 0;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < cols; ++i) {
      const uint16_t expected = table[tokens[r] * cols + i];
      bad += floats[r * cols + i] != HalfToFloat(expected) || halves[r * cols + i] != expected;
    }
  }
  Check(bad == 0, "embedding and gathering " + std::to_string(cols) + " columns: " + std::to_string(bad) +
                      " elements are wrong");
}

struct RopeCase {
  std::string name;
  RopeConfig rope;
  int heads = 4, kv_heads = 2;
  std::vector<int32_t> positions;
};

// The cache's memory as a test sees it: window tiles, a sinks' tile, pages; two layers, of which the second
// is written.
constexpr int kWindowTiles = 3, kSinkTokens = 16;

class RopeFixture {
 public:
  explicit RopeFixture(const RopeCase& c)
      : c_(c), dim_(c.rope.head_dim), rows_(c.positions.size()), tile_(4 * dim_ * 64) {
    q_ = Normals(rows_ * c.heads * dim_, 3, 7);
    k_ = Normals(rows_ * c.kv_heads * dim_, 3, 8);
    v_ = Normals(rows_ * c.kv_heads * dim_, 3, 9);
    window_bytes_ = static_cast<int64_t>(c.kv_heads) * kWindowTiles * tile_;
    sink_bytes_ = static_cast<int64_t>(c.kv_heads) * 4 * dim_ * kSinkTokens;
    exact_bytes_ = 2 * (window_bytes_ + sink_bytes_);
    page_bytes_ = 2 * c.kv_heads * tile_;  // both layers
    exact_ = DeviceArray<uint8_t>(rows_ * exact_bytes_);
    pool_ = DeviceArray<uint8_t>(rows_ * page_bytes_);
  }

  void Run(bool stores) {
    std::vector<RowTarget> targets(rows_);
    for (int64_t r = 0; r < rows_; ++r) {
      targets[r].position = c_.positions[r];
      if (!stores) continue;
      if (r % 4 != 3) targets[r].exact = exact_.data() + r * exact_bytes_;
      targets[r].window_tile = r % 2 == 0 ? static_cast<int>(r) % kWindowTiles : -1;
      targets[r].sink_slot = r % 3 != 1 ? static_cast<int>(r) % kSinkTokens : -1;
      targets[r].page[0] = r % 4 >= 2 ? static_cast<int>(rows_ - 1 - r) : -1;
      targets[r].page[1] = r % 4 == 1 || r % 4 == 2 ? static_cast<int>(r) : -1;
    }
    exact_.Fill(0xff), pool_.Fill(0xff);
    const DeviceArray<RowTarget> device_targets(targets);
    const DeviceArray<uint64_t> steps(RopeSteps(c_.rope));
    const DeviceArray<float> q(q_), k(k_), v(v_);
    DeviceArray<uint16_t> q_out(q_.size()), k_out(k_.size()), v_out(v_.size());
    DeviceArray<int32_t> error(std::vector<int32_t>{INT32_MAX});
    q_out.Fill(0xff), k_out.Fill(0xff), v_out.Fill(0xff);
    RopeStoreCall call;
    call.rows = rows_;
    call.heads = c_.heads;
    call.kv_heads = c_.kv_heads;
    call.head_dim = dim_;
    call.rotary_dims = c_.rope.rotary_dims;
    call.neox = c_.rope.pairing == RopePairing::kNeox;
    call.attention_factor = c_.rope.attention_factor;
    call.steps = steps.data();
    call.q = q.data(), call.k = k.data(), call.v = v.data();
    call.q_out = q_out.data(), call.k_out = k_out.data(), call.v_out = v_out.data();
    call.targets = device_targets.data();
    call.window_offset = window_bytes_ + 2 * sink_bytes_;  // sinks of both layers, then windows
    call.sink_offset = sink_bytes_;
    call.window_tiles = kWindowTiles;
    call.sink_tile_tokens = kSinkTokens;
    call.pool = pool_.data() + c_.kv_heads * tile_;
    call.page_bytes = page_bytes_;
    call.error = error.data();
    Require(LaunchRopeStore(call, true, nullptr), "rope");
    Require(cudaDeviceSynchronize(), "rope");
    error_ = error.Download()[0];
    rotated_q_ = q_out.Download(), rotated_k_ = k_out.Download(), halves_v_ = v_out.Download();
    if (stores) CheckStores(targets, 0);
    if (!stores) return;
    call.group = 1;
    exact_.Fill(0xff), pool_.Fill(0xff);
    Require(LaunchRopeStore(call, true, nullptr), "rope");
    Require(cudaDeviceSynchronize(), "rope");
    CheckStores(targets, 1);
  }
  void Poison(std::vector<float> RopeFixture::*what, size_t at, float value) { (this->*what)[at] = value; }
  int32_t error() const { return error_; }

  void CheckRotation() const {
    const RopeTable rope(c_.rope);
    size_t bad = 0;
    const auto check = [&](const std::vector<float>& in, const std::vector<uint16_t>& out, int heads) {
      std::vector<float> expected(dim_);
      for (size_t i = 0; i < in.size(); i += dim_) {
        rope.Apply(&in[i], c_.positions[i / dim_ / heads], expected.data());
        for (int d = 0; d < dim_; ++d) {
          const double pair = std::hypot(double{expected[d]}, double{expected[d ^ 1]});
          bad += !RoundsTo(out[i + d], expected[d], 2e-6 * pair);
        }
      }
    };
    check(q_, rotated_q_, c_.heads);
    check(k_, rotated_k_, c_.kv_heads);
    for (size_t i = 0; i < v_.size(); ++i) bad += halves_v_[i] != FloatToHalf(v_[i]);
    Check(bad == 0, c_.name + ": " + std::to_string(bad) + " elements are wrong");
    Check(error_ == INT32_MAX, c_.name + ": no error is set");
  }

  std::vector<float> q_, k_, v_;

 private:
  // Rebuilds the memory on the host from the rotated rows, byte for byte.
  void CheckStores(const std::vector<RowTarget>& targets, int group) const {
    std::vector<uint8_t> exact(exact_.size(), 0xff), pool(pool_.size(), 0xff);
    const auto put = [](std::vector<uint8_t>& memory, int64_t byte, uint16_t half) {
      std::memcpy(&memory[byte], &half, 2);
    };
    for (int64_t r = 0; r < rows_; ++r) {
      const RowTarget& t = targets[r];
      const int slot = t.position % 64;
      for (int h = 0; h < c_.kv_heads; ++h) {
        const int64_t base = r * exact_bytes_;
        const int64_t window =
            base + 2 * sink_bytes_ + window_bytes_ + (h * kWindowTiles + t.window_tile) * tile_;
        const int64_t sinks = base + sink_bytes_ + h * int64_t{4} * dim_ * kSinkTokens;
        const int64_t page = t.page[group] * page_bytes_ + (c_.kv_heads + h) * tile_;
        for (int d = 0; d < dim_; ++d) {
          const uint16_t k = rotated_k_[(r * c_.kv_heads + h) * dim_ + d];
          const uint16_t v = halves_v_[(r * c_.kv_heads + h) * dim_ + d];
          if (t.exact && t.window_tile >= 0) {
            put(exact, window + 2 * (d * 64 + slot), k);
            put(exact, window + 2 * (dim_ * 64 + slot * dim_ + d), v);
          }
          if (t.exact && t.sink_slot >= 0) {
            put(exact, sinks + 2 * (d * kSinkTokens + t.sink_slot), k);
            put(exact, sinks + 2 * (dim_ * kSinkTokens + t.sink_slot * dim_ + d), v);
          }
          if (t.page[group] >= 0) {
            put(pool, page + 2 * (slot * dim_ + d), k);
            put(pool, page + 2 * ((64 + slot) * dim_ + d), v);
          }
        }
      }
    }
    Check(exact == exact_.Download(), c_.name + ": exact tiles hold what was stored, and nothing else");
    Check(pool == pool_.Download(), c_.name + ": pages hold what was stored, and nothing else");
  }

  RopeCase c_;
  int dim_;
  int64_t rows_, tile_, window_bytes_, sink_bytes_, exact_bytes_, page_bytes_;
  DeviceArray<uint8_t> exact_, pool_;
  std::vector<uint16_t> rotated_q_, rotated_k_, halves_v_;
  int32_t error_ = 0;
};

std::vector<int32_t> ManyPositions(int count) {
  std::vector<int32_t> positions(count);
  for (int i = 0; i < count; ++i) positions[i] = static_cast<int32_t>((int64_t{i} * 1048575) / (count - 1));
  return positions;
}

void TestRope(bool quick) {
  std::vector<RopeCase> cases = {
      {"norm 128", {128, 128, RopePairing::kNorm, 500000.0}, 4, 2, {0, 1, 63, 64, 1000, 1048575}},
      {"neox 64", {64, 64, RopePairing::kNeox, 10000.0}, 3, 1, {5, 7, 1048575, 77777, 2}},
  };
  RopeConfig partial = {128, 96, RopePairing::kNeox, 1e6};
  partial.attention_factor = 1.25f;
  partial.linear_scale = 4;
  cases.push_back({"partial neox 128 with a factor", partial, 14, 2, {9, 1000003, 31}});
  RopeConfig divided = {256, 256, RopePairing::kNorm, 10000.0};
  for (int j = 0; j < 128; ++j) divided.freq_divisors.push_back(1.0f + 7.0f * j / 128);
  cases.push_back({"divided norm 256", divided, 2, 1, {0, 123456, 65535, 8}});
  if (!quick) {
    cases.push_back({"a chunk", {128, 128, RopePairing::kNeox, 1e6}, 16, 2, ManyPositions(300)});
    cases.push_back({"a long chunk", {64, 64, RopePairing::kNorm, 1e5}, 9, 3, ManyPositions(5000)});
  }
  for (const RopeCase& c : cases) {
    RopeFixture fixture(c);
    fixture.Run(c.positions.size() <= 300);
    fixture.CheckRotation();
  }
  // Errors name the first position, whatever is bad there.
  const RopeCase c = {"bad values", {64, 64, RopePairing::kNorm, 10000.0}, 2, 1, {40, 41, 42, 43}};
  struct Bad {
    std::vector<float> RopeFixture::*what;
    size_t at;
    float value;
    int32_t position;
  };
  const float infinity = std::numeric_limits<float>::infinity(),
              nan = std::numeric_limits<float>::quiet_NaN();
  for (const Bad& bad :
       {Bad{&RopeFixture::k_, 64 * 2 + 5, nan, 42}, Bad{&RopeFixture::v_, 64 + 63, infinity, 41},
        Bad{&RopeFixture::v_, 64 * 3, -33000.0f, 43}, Bad{&RopeFixture::q_, 3, nan, 40},
        Bad{&RopeFixture::q_, 64 * 7, 1e6f, 43}}) {
    RopeFixture fixture(c);
    fixture.Poison(bad.what, bad.at, bad.value);
    fixture.Run(false);
    Check(fixture.error() == bad.position, "a bad value at position " + std::to_string(bad.position) +
                                               " is found: " + std::to_string(fixture.error()));
  }
  RopeStoreCall odd;
  odd.rows = odd.heads = odd.kv_heads = 1;
  odd.head_dim = 80;
  const Status refused = LaunchRopeStore(odd, false, nullptr);
  Check(refused.code() == ErrorCode::kUnsupported && refused.message().find("80") != std::string::npos,
        "head dim 80 is refused by name: " + refused.message());
}

void Run(const DeviceLimits&, bool quick) {
  for (int64_t cols : {64, 576, 2048, 4096, 8192, 16384}) TestNorm(quick ? 2 : 5, cols);
  TestNorm(1, 12);
  for (int64_t width : {64, 128, 256, 5120}) TestNormsOfRows(7, width);
  TestScale(4100);
  for (int64_t count : {4, 11008, 3 * 8960}) TestGate(count);
  TestConversions(4100);
  TestRows(3, 64);
  TestRows(70, 4104);
  TestRope(quick);
  Check(LaunchRmsNorm(nullptr, nullptr, 1e-5f, 1, 30, nullptr, nullptr, nullptr, false, nullptr).code() ==
            ErrorCode::kUnsupported,
        "a norm of 30 columns is refused");
}

}  // namespace
}  // namespace blockgtq::cuda

int main(int argc, char** argv) { return blockgtq::cuda::RunTests(argc, argv, blockgtq::cuda::Run); }
