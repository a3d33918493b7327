// Heads whose keys have lost a mean: what decode attention adds for it, against double precision, over RoPE
// bases and scalings, positions, head dims and numbers of query heads; the table of phases; how units are
// split.
//
//   decode_mean_test [quick | every N], as decode_attention_test
//
#include <complex>
#include <string>
#include <vector>

#include "tests/cuda/decode_fixture.h"

namespace blockgtq::cuda {
namespace {

RopeConfig Rope(int head_dim, double base) {
  RopeConfig rope = cpu::MakeRope(head_dim);
  rope.freq_base = base;
  return rope;
}

// Llama 3.1's frequencies: slow blocks by 8, a ramp between wavelengths of 2,048 and 8,192 tokens.
RopeConfig LlamaRope(int head_dim) {
  RopeConfig rope = Rope(head_dim, 5e5);
  for (double f : RopeFrequencies(rope)) {
    const double wavelength = 2 * 3.14159265358979 / f;
    const double keep = std::clamp((8192 / wavelength - 1) / (4 - 1), 0.0, 1.0);
    rope.freq_divisors.push_back(static_cast<float>(1 / ((1 - keep) / 8 + keep)));
  }
  return rope;
}

constexpr int64_t kFar = 131072 - 1024, kFarthest = (int64_t{1} << 20) - 1024;

std::vector<int> Units(int first, int end) {
  std::vector<int> units;
  for (int u = first; u < end; ++u) units.push_back(u);
  return units;
}
Groups GroupsOf(int head_dim) {
  return head_dim == 64 ? Groups{{4, 32}, {3, 16}, {2, 16}} : head_dim == 128 ? k432 : k256;
}

Case MeanCase(const std::string& name, int query_heads, const RopeConfig& rope,
              const std::vector<std::vector<int>>& units_of_heads, int64_t first_position,
              std::vector<int64_t> coded) {
  Case c;
  c.name = name + " G" + std::to_string(query_heads);
  c.head_dim = rope.head_dim;
  c.query_heads = query_heads;
  for (const std::vector<int>& units : units_of_heads) {
    c.heads.push_back(Head(rope.head_dim, GroupsOf(rope.head_dim), 3, units));
  }
  c.rope = rope;
  c.first_position = first_position;
  c.coded = std::move(coded);
  return c;
}

Case Forced(Case c, int warps, bool split_tiles, int cluster_blocks, int workers) {
  c.name += std::string(", ") + std::to_string(workers) + "x" + std::to_string(cluster_blocks);
  c.warps = warps, c.split_tiles = split_tiles, c.stages = 2;
  c.cluster_blocks = cluster_blocks, c.workers = workers;
  return c;
}

std::vector<Case> QuickCases() {
  const std::vector<std::vector<int>> whole = {Units(0, 8)};
  return {
      MeanCase("quick: whole mean", 4, Rope(128, 1e6), whole, kFarthest, {300}),
      MeanCase("quick: whole mean, a head without", 8, Rope(128, 1e4), {Units(0, 8), {}}, kFar, {130, 0}),
      MeanCase("quick: head dim 64", 3, Rope(64, 1e4), {Units(0, 4), {3}}, kFarthest, {200}),
      MeanCase("quick: head dim 256", 3, Rope(256, 1e6), {Units(0, 16), {}}, kFarthest, {200}),
      MeanCase("quick: head dim 256", 7, Rope(256, 1e4), {Units(0, 16), {3, 15}}, kFar, {130}),
      // 18 rounds of a team: batches of its own.
      Forced(MeanCase("quick: long segment", 2, Rope(128, 1e6), whole, kFar, {2300}), 8, true, 1, 1),
      Forced(MeanCase("quick: long segment", 5, Rope(128, 1e6), whole, kFar, {1300}), 8, true, 1, 1),
  };
}

std::vector<Case> MoreCases() {
  std::vector<Case> cases;
  for (int head_dim : {64, 128, 256}) {
    const int units = head_dim / 16;
    for (int query_heads : {4, 8}) {
      for (double base : {1e3, 1e4, 5e5, 1e6, 1e7}) {
        for (int64_t first : {int64_t{0}, kFar, kFarthest}) {
          cases.push_back(MeanCase("D" + std::to_string(head_dim) + " base " + std::to_string(int64_t(base)) +
                                       " from " + std::to_string(first),
                                   query_heads, Rope(head_dim, base), {Units(0, units)}, first, {1000}));
        }
      }
      // Some units: fast ones alone, slow ones alone, gaps, none.
      cases.push_back(
          MeanCase("D" + std::to_string(head_dim) + " some units", query_heads, Rope(head_dim, 1e6),
                   {{0}, {units - 1}, {0, units - 1}, {1, units - 1}, {1, 2}, {}}, kFarthest, {700, 65}));
      RopeConfig linear = Rope(head_dim, 1e4), partial = Rope(head_dim, 1e4), factor = Rope(head_dim, 1e4);
      linear.linear_scale = 8;
      partial.rotary_dims = head_dim / 2;
      factor.attention_factor = 1.2f;
      const std::string d = "D" + std::to_string(head_dim);
      cases.push_back(MeanCase(d + " linear scaling", query_heads, linear, {Units(0, units)}, kFar, {500}));
      cases.push_back(MeanCase(d + " half rotary", query_heads, partial, {Units(0, units)}, kFar, {500}));
      cases.push_back(MeanCase(d + " attention factor", query_heads, factor, {Units(0, units)}, kFar, {500}));
      cases.push_back(
          MeanCase(d + " Llama 3.1", query_heads, LlamaRope(head_dim), {Units(0, units)}, kFar, {500}));
    }
  }
  for (int query_heads : {1, 2, 3, 5, 6, 7, 9, 11, 16}) {
    cases.push_back(MeanCase("ragged", query_heads, Rope(128, 1e6), {Units(0, 8), Units(3, 8)}, kFarthest,
                             {64, 0, 127, 640, 2049}));
  }
  for (int count = 1; count <= 8; ++count) {
    cases.push_back(MeanCase("the slowest " + std::to_string(count), 4, Rope(128, 1e6), {Units(8 - count, 8)},
                             kFarthest, {900}));
    cases.push_back(MeanCase("the fastest " + std::to_string(count), 8, Rope(128, 1e4), {Units(0, count)},
                             kFarthest, {900}));
  }
  // Segments of few and of many rounds, that start inside a round, and several a worker.
  for (int query_heads : {4, 8}) {
    for (int workers : {1, 3, 7}) {
      for (int blocks : {1, 2, 8}) {
        const Case c = MeanCase("segments", query_heads, Rope(128, 1e6), {Units(0, 8), {}, Units(2, 8)}, kFar,
                                {1500, 70, 4000});
        cases.push_back(Forced(c, 8, false, blocks, workers));
        cases.push_back(Forced(c, 8, true, blocks, workers));
        cases.push_back(Forced(c, 12, false, blocks, workers));
      }
    }
  }
  Case exact = MeanCase("sinks and window", 8, Rope(128, 1e6), {Units(0, 8)}, 0, {3000, 0});
  exact.sinks = 4, exact.recent = {100, 30};
  cases.push_back(exact);
  return cases;
}

// A mean as Qwen's: large in the slowest blocks, so logits of hundreds; the bias must be as good as from keys
// in fp16. Checked through the output, where an error of the logits shows as itself.
std::vector<Case> LargeMeanCases() {
  std::vector<Case> cases;
  for (int query_heads : {4, 8}) {
    Case c =
        MeanCase("a mean of 60 in the slowest blocks", query_heads, Rope(128, 1e6), {{7}}, kFarthest, {1000});
    c.heads[0].mean_size = 60;
    cases.push_back(c);
  }
  return cases;
}

void TestPhases() {
  for (int head_dim : {64, 128, 256}) {
    const RopeConfig rope = Rope(head_dim, 1e6);
    const std::vector<double> frequencies = RopeFrequencies(rope);
    constexpr int64_t kFirst = (int64_t{1} << 20) - 128;
    const std::vector<uint16_t> phases = DevicePhases(rope, kFirst, 128).phases.Download();
    double worst = 0;
    for (int row = 0; row < 4; ++row) {
      for (int block = 0; block < head_dim / 2; ++block) {
        const size_t at =
            (((row / 2 * head_dim / 16 + block / 8) * 2 * 4 + block % 4) * 4 + block / 4 % 2 * 2 + row % 2) *
            2;
        const long double angle = static_cast<long double>(frequencies[block]) * (kFirst + 32 * row + 15.5L);
        for (int e = 0; e < 2; ++e) {
          const double exact = static_cast<double>(e == 0 ? std::cos(angle) : std::sin(angle));
          const double high = HalfToFloat(phases[at + e]), low = HalfToFloat(phases[at + 32 + e]);
          worst = std::max(worst, std::fabs(high + low - exact));
          Check(std::fabs(high - exact) < 5e-4, "phases: high");
        }
      }
    }
    Check(worst < 3e-7, "phases at a million tokens of head dim " + std::to_string(head_dim) + ": off by " +
                            std::to_string(worst));
  }
}

void TestSplit() {
  const auto split = [](const RopeConfig& rope, std::vector<int> units) {
    return SplitMeanUnits(
        cpu::MakeHeadPlan(Head(rope.head_dim, GroupsOf(rope.head_dim), 3, std::move(units)), 1), rope);
  };
  for (double base : {1e4, 5e5, 1e6, 1e7}) {
    for (int head_dim : {64, 128, 256}) {
      const int fast = head_dim == 256 ? 2 : 1;
      const MeanUnits units = split(Rope(head_dim, base), Units(0, head_dim / 16));
      Check(units.direct == Units(0, fast) && units.series_first == fast &&
                units.series_units == head_dim / 16 - fast,
            "of the usual bases only the fastest units are direct");
    }
  }
  Check(split(Rope(128, 10), Units(0, 8)).direct.size() == 8, "base 10: every unit is direct");
  RopeConfig slow = Rope(128, 1e4);
  slow.linear_scale = 64;
  Check(split(slow, {0}).direct.empty(), "a slow unit 0 is in the series");
  const MeanUnits last = split(Rope(128, 1e6), {7});
  Check(last.direct.empty() && last.series_units <= 4, "the slowest unit alone: half a batch");
}

void Run(Cases& cases, const DeviceLimits&, bool quick, size_t every) {
  TestPhases();
  TestSplit();
  cases.RunSome(QuickCases(), 1, true);
  cases.RunSome(LargeMeanCases(), 1, false);
  if (!quick) cases.RunSome(MoreCases(), every, true);
}

}  // namespace
}  // namespace blockgtq::cuda

int main(int argc, char** argv) { return blockgtq::cuda::RunDecodeTests(argc, argv, blockgtq::cuda::Run); }
