// Attention over latents on the GPU, from queries and keys as products leave them to outputs, against double
// precision over what the cache holds: records made by the reference encoder, sinks, a window, pages, a
// chunk's rows.
//
//   latent_attention_test [quick]    quick: small cases, for compute-sanitizer and the emulator
//
#include <cmath>
#include <string>
#include <vector>

#include "tests/cuda/latent_fixture.h"

namespace blockgtq::cuda {
namespace {

std::vector<LatentCase> QuickCases() {
  std::vector<LatentCase> cases;
  const std::vector<LatentSpec> specs = LatentSpecs(16, 32);
  for (size_t i = 0; i < specs.size(); ++i) {
    cases.push_back({"quick " + std::to_string(i), specs[i], 4, {{128, 200}, {0, 1}, {64, 65}}, 4});
  }
  const LatentSpec mean = specs[1];
  cases.push_back({"quick: 20 heads, splits of each kind",
                   specs[0],
                   20,
                   {{192, 256}},
                   4,
                   1,
                   LatentExact::kTiles,
                   false,
                   1.0f,
                   1.2f,
                   2,
                   2});
  cases.push_back({"quick: rows as decoded", mean, 4, {{64, 140}}, 4, 5});
  cases.push_back({"quick: rows of their own codes", mean, 3, {{0, 70}}, 2, 9, LatentExact::kTiles, true});
  cases.push_back({"quick: a chunk", specs[0], 4, {{70, 190}}, 4, 100, LatentExact::kRows});
  cases.push_back({"quick: a chunk from the start", specs[2], 4, {{0, 40}}, 4, 40, LatentExact::kRows});
  cases.push_back({"quick: pages", specs[0], 4, {{0, 150}, {0, 3}}, 0, 1, LatentExact::kPages});
  cases.push_back({"quick: rows of pages", specs[0], 5, {{0, 150}}, 0, 80, LatentExact::kPages});
  return cases;
}

std::vector<LatentCase> MoreCases() {
  std::vector<LatentCase> cases;
  const std::vector<LatentSpec> tiny = LatentSpecs(32, 96), lite = LatentSpecs(64, 512);
  for (size_t i = 0; i < lite.size(); ++i) {
    for (int heads : {1, 16, 20}) {
      const std::string name =
          "64 + 512, spec " + std::to_string(i) + ", " + std::to_string(heads) + " heads";
      cases.push_back({name, lite[i], heads, {{448, 500}, {64, 100}, {0, 30}}, 4});
    }
  }
  for (size_t i = 0; i < tiny.size(); ++i) {
    for (int heads : {7, 33, 128}) {
      const std::string name = "32 + 96, spec " + std::to_string(i) + ", " + std::to_string(heads) + " heads";
      cases.push_back({name, tiny[i], heads, {{960, 1000}, {64, 129}, {0, 64}, {0, 5}}, 4});
    }
  }
  cases.push_back({"128 heads", lite[0], 128, {{1024, 1100}, {128, 200}}, 4});
  cases.push_back({"4K tokens", lite[0], 16, {{4032, 4096}}, 4});
  cases.push_back({"no sinks, nothing exact but itself", lite[2], 16, {{640, 641}}});
  cases.push_back({"64 sinks", lite[1], 16, {{64, 130}, {256, 300}, {0, 20}}, 64});
  cases.push_back({"sharp logits", lite[0], 16, {{640, 700}}, 4, 1, LatentExact::kTiles, false, 6.0f});
  cases.push_back(
      {"attention factor", lite[4], 16, {{640, 700}}, 4, 1, LatentExact::kTiles, false, 1.0f, 1.3f});
  cases.push_back({"rows as decoded", lite[0], 16, {{192, 260}}, 4, 20});
  cases.push_back({"rows of their own codes", lite[0], 16, {{0, 256}}, 4, 30, LatentExact::kTiles, true});
  cases.push_back(
      {"rows of their own codes, no sinks", tiny[1], 128, {{0, 300}}, 0, 7, LatentExact::kTiles, true});
  cases.push_back({"a chunk", lite[0], 16, {{320, 600}}, 4, 200, LatentExact::kRows});
  cases.push_back({"a chunk of 128 heads", tiny[1], 128, {{130, 400}}, 4, 90, LatentExact::kRows});
  cases.push_back({"a chunk without sinks", lite[3], 16, {{320, 400}}, 0, 80, LatentExact::kRows});
  cases.push_back({"pages", lite[0], 16, {{0, 1000}, {0, 64}, {0, 65}, {0, 1}}, 0, 1, LatentExact::kPages});
  cases.push_back({"pages, 128 heads", lite[0], 128, {{0, 700}}, 0, 1, LatentExact::kPages});
  cases.push_back({"rows of pages", lite[0], 16, {{0, 300}}, 0, 300, LatentExact::kPages});
  cases.push_back({"1024 dims", {64, 960, {{4, 64}}, {{3, 480}, {2, 480}}, {0}, {}}, 16, {{320, 400}}, 4});
  return cases;
}

/// A query and a key that are not finite: the smaller position is reported.
void TestNotFinite() {
  const RopeConfig config = LatentRope(LatentSpecs(16, 32)[0]);
  const DeviceArray<uint64_t> steps(RopeSteps(config));
  std::vector<float> q(3 * 2 * 48, 1.0f), k(3 * 48, 1.0f);
  q[2 * 2 * 48 + 5] = NAN;
  k[48 + 20] = 40000.0f;
  const DeviceArray<float> device_q(q), device_k(k);
  std::vector<RowTarget> targets(3);
  for (int r = 0; r < 3; ++r) targets[static_cast<size_t>(r)].position = 70 + r;
  const DeviceArray<RowTarget> device_targets(targets);
  DeviceArray<uint16_t> queries(q.size());
  DeviceArray<float> scales(6);
  const DeviceArray<int32_t> error(std::vector<int32_t>{INT32_MAX});
  LatentStoreCall call;
  call.rows = 3;
  call.heads = 2;
  call.head_dim = 48;
  call.rotary_dims = 16;
  call.steps = steps.data();
  call.q = device_q.data();
  call.k = device_k.data();
  call.queries = queries.data();
  call.query_scale = scales.data();
  call.targets = device_targets.data();
  call.error = error.data();
  Require(LaunchLatentStore(call, nullptr), "launch");
  Require(cudaDeviceSynchronize(), "store");
  Check(error.Download()[0] == 71, "not finite: the smallest position");
}

void TestGather() {
  const int dim = 48;
  std::vector<uint16_t> exact(16 + 3 * 64 * dim);
  for (size_t i = 0; i < exact.size(); ++i) exact[i] = static_cast<uint16_t>(i);
  const DeviceArray<uint16_t> tiles(exact);
  DeviceArray<uint16_t> rows(100 * dim);
  rows.Fill(0);
  LatentTiles where;
  where.window_offset = 32;
  where.window_tiles = 3;
  Require(LaunchLatentGather(reinterpret_cast<const uint8_t*>(tiles.data()), where, dim, 300, 50, 256,
                             rows.data(), nullptr),
          "launch");
  const std::vector<uint16_t> got = rows.Download();
  bool right = true;
  for (int64_t t = 256; t < 356; ++t) {
    for (int d = 0; d < dim; ++d) {
      const uint16_t wanted =
          t >= 300 && t < 350 ? exact[16 + (t / 64 % 3 * 64 + t % 64) * dim + d] : uint16_t{0};
      right = right && got[(t - 256) * dim + d] == wanted;
    }
  }
  Check(right, "tokens of a window come to their rows");
}

void RunAll(const DeviceLimits& limits, bool quick) {
  TestNotFinite();
  TestGather();
  std::vector<LatentCase> cases = QuickCases();
  const std::vector<LatentCase> more = quick ? std::vector<LatentCase>{} : MoreCases();
  cases.insert(cases.end(), more.begin(), more.end());
  for (const LatentCase& c : cases) LatentFixture(c).Run(limits);
}

}  // namespace
}  // namespace blockgtq::cuda

int main(int argc, char** argv) { return blockgtq::cuda::RunTests(argc, argv, blockgtq::cuda::RunAll); }
