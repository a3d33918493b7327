// Layers with a sliding window beside layers that see everything, each kind with its own RoPE: what attention
// gives on the GPU against the CPU backend, over prompts, decoding, batches, forks, cuts and sessions.
//
//   windowed_attention_test [quick]     quick: fewer caches, for compute-sanitizer
//
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "src/cpu/cpu_backend.h"
#include "src/cuda/cuda_backend.h"
#include "tests/cuda/attention_runner.h"
#include "tests/cuda/harness.h"

namespace blockgtq::cuda {
namespace {

class Comparison {
 public:
  Comparison(Backend& cpu, Backend& gpu, const CacheCase& c) : case_(c), cpu_(cpu, c), gpu_(gpu, c) {}

  void Step(const std::string& what, const std::vector<Piece>& pieces) {
    const auto expected = cpu_.Step(pieces), got = gpu_.Step(pieces);
    for (int layer = 0; layer < kLayers; ++layer) {
      const bool small = case_.windowed[static_cast<size_t>(layer)] != 0 && case_.window <= 100;
      const double apart = Distance(expected[static_cast<size_t>(layer)], got[static_cast<size_t>(layer)]);
      double& worst = small ? worst_small_ : worst_;
      worst = std::max(worst, apart);
      Check(apart <= Tolerance(small), case_.Name() + ": " + what + ", layer " + std::to_string(layer) +
                                           ": off by " + std::to_string(apart));
    }
  }
  /// Of the worst row. The GPU's inputs and sums are fp16; where tokens are coded, both round probabilities
  /// to 8 bits, which weighs more the more tokens there are: the mean of many random values is small. One
  /// token too many or too few is 0.1 with a window of 100, 0.22 with 20; larger windows show the way of
  /// pages and codes here, and their edges in decode_attention_test.
  double Tolerance(bool small_window) const {
    if (case_.kind == CacheKind::kHalf) return 4e-3;
    return small_window ? 4e-2 : 0.1;
  }
  template <typename Change>
  void Both(Change change) {
    change(cpu_);
    change(gpu_);
  }
  /// What the GPU saves of a sequence becomes a new one on both.
  void Reload(int sequence) {
    const std::string path = std::filesystem::temp_directory_path() / "blockgtq_windowed_attention_test";
    gpu_.Save(sequence, path);
    Both([&](Runner& r) { r.Load(path); });
    std::filesystem::remove(path);
  }
  void Print() const {
    std::printf("%-66s worst row %.1e, of small windows %.1e\n", case_.Name().c_str(), worst_, worst_small_);
  }

 private:
  CacheCase case_;
  Runner cpu_, gpu_;
  double worst_ = 0, worst_small_ = 0;
};

void TestCache(Backend& cpu, Backend& gpu, const CacheCase& c) {
  Comparison both(cpu, gpu, c);
  both.Both([](Runner& r) { r.Add(), r.Add(); });
  both.Step("a prompt", {{0, 300}});
  both.Step("a short prompt behind it", {{0, 33}, {1, 20}});
  for (int i = 0; i < 5; ++i) both.Step("decoding, step " + std::to_string(i), {{0, 1}, {1, 1}});
  both.Step("strict rows", {{0, 70, true}, {1, 3, true}});
  both.Step("a chunk of one sequence beside a decoded token", {{0, 1}, {1, 200}});
  both.Both([](Runner& r) { r.Cut(0, 40); });
  for (int i = 0; i < 4; ++i) both.Step("decoding after a cut", {{0, 1}});
  both.Step("a chunk longer than most windows", {{0, kMostRows}});
  // A page leaves the window of recent tokens while a captured step runs.
  for (int i = 0; i < 70; ++i) both.Step("decoding on, step " + std::to_string(i), {{0, 1}, {1, 1}});
  both.Both([](Runner& r) { r.Fork(0, 10); });
  for (int i = 0; i < 3; ++i) both.Step("a fork beside its source", {{0, 1}, {1, 1}, {2, 1}});
  both.Both([](Runner& r) { r.Remove(0), r.Add(); });
  both.Step("a new sequence in pages given back", {{0, 250}, {1, 1}});
  for (int i = 0; i < 3; ++i) both.Step("decoding beside the fork", {{0, 1}, {1, 1}, {2, 1}});
  both.Both([](Runner& r) { r.Remove(0); });
  both.Reload(2);
  for (int i = 0; i < 3; ++i) both.Step("a session beside its sequence", {{0, 1}, {2, 1}});
  both.Step("a prompt behind the session", {{0, 120}});
  both.Print();
}

void Run(const DeviceLimits&, bool quick) {
  const auto gpu = Require(CreateCudaBackend({"cuda", 1}), "the backend");
  const auto cpu = Require(cpu::CreateCpuBackend({"cpu", 2}), "the CPU backend");
  Check(gpu->Has(Operation::kSlidingWindow) && gpu->Has(Operation::kRopesByLayer), "the backend has windows");
  const std::vector<CacheCase> quick_cases = {{CacheKind::kPacked, 4, 64, 100},
                                              {CacheKind::kHalf, 0, 0, 100}};
  for (const CacheCase& c : quick_cases) TestCache(*cpu, *gpu, c);
  if (quick) return;
  for (const int64_t window : {20, 333, 5000}) {
    TestCache(*cpu, *gpu, {CacheKind::kPacked, 4, 64, window});
    TestCache(*cpu, *gpu, {CacheKind::kPacked, 4, 0, window});
    TestCache(*cpu, *gpu, {CacheKind::kPacked, 0, 130, window});
    TestCache(*cpu, *gpu, {CacheKind::kHalf, 0, 0, window});
  }
  TestCache(*cpu, *gpu, {CacheKind::kPacked, 4, 64, 90, {1, 1, 1, 1}});
  TestCache(*cpu, *gpu, {CacheKind::kHalf, 0, 0, 90, {1, 1, 1, 1}});
}

}  // namespace
}  // namespace blockgtq::cuda

int main(int argc, char** argv) { return blockgtq::cuda::RunTests(argc, argv, blockgtq::cuda::Run); }
